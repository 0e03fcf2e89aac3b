"""The functions of kernels/wgmma.cuh: right on a GPU and, by their twins, on the emulator, where faults show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiny_vllm.device import nvrtc
from tiny_vllm.device.emulator import Emulator
from tiny_vllm.device.emulator.waits import may_wait
from tiny_vllm.device.source import load_source, scalar_options, strip_comments
from tiny_vllm.errors import DeviceError, KernelCheckError, LaunchError

ROOT = Path(__file__).parents[2]
TWINS = ROOT / "tiny_vllm" / "device" / "emulator" / "cpp" / "include" / "wgmma_twins.h"
CODE = load_source("wgmma.cu", [Path(__file__).parent / "kernels", ROOT / "kernels"])
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {"bfloat16": BFLOAT16, "float16": np.dtype(np.float16)}
TOLERANCE = 1e-4  # of sums of 65 numbers about 1


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    return DTYPES[request.param]


@pytest.fixture
def hopper(device: Any) -> Any:
    """The device under test; skipped on a GPU that has not the instructions."""
    if device.compute_capability != 90:
        pytest.skip("needs sm_90a")
    return device


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    return Emulator()


def compiled(device: Any, name: str, dtype: np.dtype, settings: dict[str, Any], **macros: int) -> Any:
    options = (*scalar_options(dtype), *(f"-D{key}={value}" for key, value in macros.items()))
    return device.RawModule(CODE, options=options, **settings).get_function(name)


def products(
    device: Any,
    rng: np.random.Generator,
    dtype: np.dtype = BFLOAT16,
    shape: tuple[int, int] = (1, 1),
    offset: int = 0,
    fault: int = 0,
    settings: dict[str, Any] | None = None,
    **macros: int,
) -> tuple[np.ndarray, np.ndarray]:
    """(what the kernel gives, what is right). shape: blocks, groups of 128 threads; offset: of the first tile."""
    blocks, groups = shape
    run = compiled(device, "products", dtype, settings or {}, **macros, **({"FAULTY": 1} if fault else {}))
    a, b = (rng.standard_normal((groups, 64, 64)).astype(dtype) for _ in range(2))
    c = rng.standard_normal((blocks, groups, 64, 64)).astype(np.float32)
    d = device.asarray(np.full(c.shape, np.nan, np.float32))
    size = 0 if "STATIC" in macros else offset + 16384 * groups
    run((blocks,), (128 * groups,), (*map(device.asarray, (a, b, c)), d, offset, fault), shared_mem=size)
    wide = b.astype(np.float64)
    return device.to_host(d), c + a.astype(np.float64) @ (wide if macros.get("BY_ROWS") else wide.transpose(0, 2, 1))


# ---- the same numbers as by the definition


@pytest.mark.parametrize("left_in_shared", [0, 1], ids=["registers", "shared"])
@pytest.mark.parametrize("by_rows", [0, 1], ids=["plain", "transposed"])
def test_products(hopper, dtype, rng, by_rows, left_in_shared):
    for shape, offset in [((1, 1), 0), ((2, 1), 1024), ((2, 2), 0), ((1, 2), 5 * 1024)]:
        macros = {"BY_ROWS": by_rows, "LEFT_IN_SHARED": left_in_shared}
        got, expected = products(hopper, rng, dtype, shape, offset, **macros)
        np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("left_in_shared", [0, 1], ids=["registers", "shared"])
def test_tiles_in_static_shared_memory(hopper, rng, left_in_shared):
    got, expected = products(hopper, rng, offset=2048, STATIC=24 * 1024, LEFT_IN_SHARED=left_in_shared)
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("by_rows", [0, 1], ids=["plain", "transposed"])
def test_a_nan_stays_in_its_row_and_column(hopper, dtype, by_rows):
    a, b, c = np.zeros((1, 64, 64), dtype), np.zeros((1, 64, 64), dtype), np.zeros((1, 64, 64), np.float32)
    a[0, 21, 3], b[0, (9, 44)[by_rows], (44, 9)[by_rows]] = np.nan, np.nan
    arrays = [hopper.asarray(each) for each in (a, b, c, np.ones_like(c))]
    run = compiled(hopper, "products", dtype, {}, BY_ROWS=by_rows)
    run((1,), (128,), (*arrays, 0, 0), shared_mem=16384)
    expected = np.zeros((64, 64), bool)
    expected[21], expected[:, 9] = True, True
    np.testing.assert_array_equal(np.isnan(hopper.to_host(arrays[3])[0]), expected)


def two_groups(device: Any, rng: np.random.Generator, **macros: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = (rng.standard_normal((64, 64)).astype(BFLOAT16) for _ in range(2))
    d = device.asarray(np.full((2, 64, 64), np.nan, np.float32))
    run = compiled(device, "one_after_the_other", BFLOAT16, {}, **macros)
    run((1,), (128,), (device.asarray(a), device.asarray(b), d), shared_mem=8192)
    once = a.astype(np.float64) @ b.T.astype(np.float64)
    return device.to_host(d), np.stack([once, 2 * once])


def test_a_group_may_be_read_while_the_next_is_on_its_way(hopper, rng):
    got, expected = two_groups(hopper, rng)
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


# ---- what a GPU leaves silent, on the emulator


def test_a_group_that_nobody_waited_for_is_nan(emulator, rng):
    got, expected = two_groups(emulator, rng, RUNNING=2)
    assert np.isnan(got[0]).all()
    np.testing.assert_allclose(got[1], expected[1], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("fault", [3, 4], ids=["late wait", "read early"])
def test_sums_read_before_the_wait_are_nan(fault, emulator, rng):
    got, _ = products(emulator, rng, fault=fault)
    assert np.isnan(got).all()


FAULTS = {
    "no wait": (1, "that no commit and wait covered before its threads returned"),
    "no commit": (2, "that no commit and wait covered before its threads returned"),
    "right overwritten": (5, "whose right operand changed before the wait that covers it"),
    "sums overwritten": (7, "whose sums were written to before the wait that covers it"),
    "sums scaled": (8, "whose sums were written to before the wait that covers it"),
    "no begin": (9, "without wgmma_begin since the start or the last wait"),
    "not announced": (10, "of a tile that a thread copied without shared_writes_for_wgmma after the wait"),
    "an operand of each warp": (12, "of other operands than those of another warp of the warpgroup"),
    "an operand of each lane": (13, "of other operands than those of another lane of the warp"),
    "a warp left out": (14, "that not every warp of the warpgroup began"),
    "another word": (16, "of an operand in shared memory that shared_operand did not make"),
    "begun before the barrier": (18, r"whose \w+ operand changed before the wait that covers it"),
    "freed before the wait": (19, "whose right operand changed before the wait that covers it"),
    "too many": (17, "with 64 products of the warp on their way: wait for some"),
}


@pytest.mark.parametrize("left_in_shared", [0, 1], ids=["registers", "shared"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused(fault, left_in_shared, emulator, rng):
    number, sentence = FAULTS[fault]
    where = rf"products: .*wgmma\.mma_async {sentence}, block \(0, 0, 0\), thread \(\d+, 0, 0\)"
    with pytest.raises(LaunchError, match=where):
        products(emulator, rng, fault=number, LEFT_IN_SHARED=left_in_shared)


def test_a_left_operand_overwritten_is_refused(emulator, rng):
    with pytest.raises(LaunchError, match=r"whose left operand changed before the wait that covers it"):
        products(emulator, rng, fault=6, LEFT_IN_SHARED=1)


def test_a_tile_that_others_have_not_written_shows(emulator, rng):
    got, _ = products(emulator, rng, fault=11)
    assert np.isnan(got).any()


def test_a_warp_with_lanes_missing_is_refused(emulator, rng):
    with pytest.raises(LaunchError, match=r"in a warp of which some lanes have returned"):
        products(emulator, rng, fault=15)


@pytest.mark.parametrize("threads", [32, 96, 160])
def test_a_block_of_other_than_whole_warpgroups_is_refused(threads, emulator):
    tile, sums = np.zeros((2, 64, 64), BFLOAT16), np.zeros((2, 64, 64), np.float32)
    with pytest.raises(LaunchError, match="in a block that is not made of warpgroups of 128 threads"):
        run = compiled(emulator, "products", BFLOAT16, {})
        run((1,), (threads,), (tile, tile, sums, sums.copy(), 0, 0), shared_mem=32768)


@pytest.mark.parametrize("by_rows", [0, 1], ids=["plain", "transposed"])
@pytest.mark.parametrize("offset", [16, 128, 512])
def test_a_tile_at_another_address_is_refused(offset, by_rows, emulator, rng):
    with pytest.raises(LaunchError, match=r"misaligned address .*of a tile at an address that is no multiple of 1024"):
        products(emulator, rng, offset=offset, BY_ROWS=by_rows)


@pytest.mark.parametrize("left_in_shared", [0, 1], ids=["registers", "shared"])
def test_a_tile_beyond_shared_memory_is_refused(left_in_shared, emulator):
    tile, sums = np.zeros((64, 64), BFLOAT16), np.zeros((64, 64), np.float32)
    run = compiled(emulator, "products", BFLOAT16, {}, LEFT_IN_SHARED=left_in_shared)
    with pytest.raises(LaunchError, match="of a tile that reaches beyond shared memory"):
        run((1,), (128,), (tile, tile, sums, sums.copy(), 0, 0), shared_mem=(8192, 16384)[left_in_shared] - 1024)


# ---- check mode


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("by_rows", [0, 1], ids=["plain", "transposed"])
@pytest.mark.parametrize("left_in_shared", [0, 1], ids=["registers", "shared"])
def test_check_mode_finds_nothing_in_a_right_kernel(left_in_shared, by_rows, order, emulator, rng):
    settings = {"check": True, "order": order}
    macros = {"BY_ROWS": by_rows, "LEFT_IN_SHARED": left_in_shared}
    got, expected = products(emulator, rng, shape=(2, 2), settings=settings, **macros)
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


RACES = {"right overwritten": 5, "no barrier": 11, "begun before the barrier": 18, "freed before the wait": 19}


@pytest.mark.parametrize("fault", RACES)
def test_check_mode_names_the_race_of_a_product_and_a_write(fault, emulator, rng):
    with pytest.raises(KernelCheckError, match=r"race: .* 'tiles\[") as raised:
        products(emulator, rng, fault=RACES[fault], settings={"check": True})
    assert "wgmma.cu" in str(raised.value)


# ---- the header


def functions(text: str) -> set[str]:
    return set(re.findall(r"(?:__forceinline__|static inline) void (wgmma\w+|shared_\w+)\(", strip_comments(text)))


def test_every_instruction_has_a_twin():
    header = (ROOT / "kernels" / "wgmma.cuh").read_text()
    instructions = functions(header[header.index("#else") : header.rindex("#endif")])
    assert len(instructions) == 5
    assert instructions == functions(TWINS.read_text())


def test_the_emulator_knows_that_they_wait():
    assert may_wait(CODE, "products") and may_wait(CODE, "one_after_the_other")


@pytest.mark.parametrize("macros", [(), ("-DBY_ROWS=1", "-DLEFT_IN_SHARED=1")], ids=["registers", "shared"])
def test_they_compile_for_their_architecture(dtype, macros):
    try:
        nvrtc.compile_cuda("__global__ void nothing() {}")
    except DeviceError as error:
        pytest.skip(str(error))
    report = nvrtc.compile_cuda(CODE, "wgmma.cu", "90a", (*scalar_options(dtype), *macros))
    assert {"products", "one_after_the_other"} <= report.kernels.keys()
    assert all(usage.spill_bytes == 0 for usage in report.kernels.values())
