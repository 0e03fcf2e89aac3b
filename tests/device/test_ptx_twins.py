"""The functions of kernels/ptx.cuh do the same on a GPU and, as plain C++ twins, on the emulator; faults show there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiny_vllm.device.emulator import Emulator
from tiny_vllm.device.emulator.waits import may_wait
from tiny_vllm.device.source import load_source, scalar_options, strip_comments
from tiny_vllm.errors import LaunchError

ROOT = Path(__file__).parents[2]
KERNELS = Path(__file__).parent / "kernels"
TWINS = ROOT / "tiny_vllm" / "device" / "emulator" / "cpp" / "include" / "ptx_twins.h"
CODE = load_source("ptx.cu", [KERNELS, ROOT / "kernels"])
DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    return DTYPES[request.param]


@pytest.fixture
def kernel(device: Any, dtype: np.dtype):
    """kernel(name, **macros) on the device under test; skipped on a GPU that has not the instructions."""
    if device.compute_capability < 80:
        pytest.skip("needs sm_80")
    return lambda name, **macros: compiled(device, name, dtype, **macros)


def compiled(device: Any, name: str, dtype: Any = DTYPES["bfloat16"], **macros: int) -> Any:
    options = (*scalar_options(dtype), *(f"-D{key}={value}" for key, value in macros.items()))
    return device.RawModule(CODE, options=options).get_function(name)


def poisoned(device: Any, shape: tuple[int, ...]) -> Any:
    return device.asarray(np.full(shape, np.nan, np.float32))


# ---- the same numbers as by the definition


def test_ldmatrix(kernel, device, rng):
    """r[m] of lane (g, t): row g, columns 2t and 2t + 1 of matrix m; transposed: of its transpose."""
    rows = rng.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    out = device.asarray(np.zeros((2, 32, 4), np.uint32))
    kernel("matrices")((1,), (32,), (device.asarray(rows.reshape(32, 8)), out))
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for which, matrices in enumerate((rows, rows.transpose(0, 2, 1))):
            low, high = matrices[:, g, 2 * t].astype(np.uint32), matrices[:, g, 2 * t + 1].astype(np.uint32)
            np.testing.assert_array_equal(device.to_host(out)[which, lane], low | high << 16)


@pytest.mark.parametrize("scale", [1e-2, 1.0, 30.0])
def test_mma(kernel, device, dtype, rng, scale):
    a, b = ((scale * rng.standard_normal(shape)).astype(dtype) for shape in ((16, 16), (8, 16)))
    c, d = rng.standard_normal((16, 8)).astype(np.float32), poisoned(device, (16, 8))
    kernel("one_product")((1,), (32,), (device.asarray(a), device.asarray(b), device.asarray(c), d))
    expected = a.astype(np.float64) @ b.astype(np.float64).T + c
    np.testing.assert_allclose(device.to_host(d), expected, atol=1e-5 * np.abs(expected).max())


def test_a_nan_stays_in_its_row_and_column(kernel, device, dtype):
    a, b = np.zeros((16, 16), dtype), np.zeros((8, 16), dtype)
    a[5, 3], b[2, 9] = np.nan, np.nan
    c, d = np.zeros((16, 8), np.float32), poisoned(device, (16, 8))
    kernel("one_product")((1,), (32,), (device.asarray(a), device.asarray(b), device.asarray(c), d))
    expected = np.zeros((16, 8), bool)
    expected[5], expected[:, 2] = True, True
    np.testing.assert_array_equal(np.isnan(device.to_host(d)), expected)


def product(device: Any, dtype: np.dtype, rng: np.random.Generator, **macros: int) -> tuple[np.ndarray, np.ndarray]:
    """(what the kernel gives, what is right) for c = a @ b, 64 each way."""
    a, b = (rng.standard_normal((64, 64)).astype(dtype) for _ in range(2))
    c = poisoned(device, (64, 64))
    run = compiled(device, "product", dtype, **macros)
    run((1,), (128,), (device.asarray(a), device.asarray(b), c), shared_mem=8192)
    return device.to_host(c), a.astype(np.float64) @ b.astype(np.float64)


def test_a_double_buffered_product(kernel, device, dtype, rng):
    got, expected = product(device, dtype, rng)
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("valid", [0, 3, 4])
def test_copies(kernel, device, rng, valid):
    chunks = rng.integers(0, 1 << 32, (4, 4)).astype(np.uint32)
    out = device.asarray(np.zeros((3, 64, 4, 4), np.uint32))
    kernel("copies")((3,), (64,), (device.asarray(chunks), out, valid, 0))
    chunks[valid:] = 0
    np.testing.assert_array_equal(device.to_host(out), np.broadcast_to(chunks, out.shape))


def test_hints_change_nothing(kernel, device, rng):
    values = rng.integers(0, 1 << 32, (32, 4)).astype(np.uint32)
    out = device.asarray(np.zeros_like(values))
    kernel("hints")((1,), (32,), (device.asarray(values), out))
    np.testing.assert_array_equal(device.to_host(out), values)


def test_pack_rounds_to_nearest(kernel, device, dtype, rng):
    values = (rng.standard_normal((32, 2)) * 10.0 ** rng.integers(-6, 6, (32, 2))).astype(np.float32)
    out = device.asarray(np.zeros(32, np.uint32))
    kernel("pairs")((1,), (32,), (device.asarray(values), out))
    with np.errstate(over="ignore"):
        expected = values.astype(dtype).view(np.uint16)
    np.testing.assert_array_equal(device.to_host(out).view(np.uint16).reshape(32, 2), expected)


# ---- what a GPU leaves silent, on the emulator


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    return Emulator()


@pytest.mark.parametrize("fault", [1, 2, 3, 4], ids=["no commit", "no wait", "late wait", "no barrier"])
def test_a_copy_that_nobody_waited_for_shows(fault, emulator, rng):
    got, _ = product(emulator, DTYPES["bfloat16"], rng, FAULT=fault)
    assert np.isnan(got).any()


@pytest.mark.parametrize("pending", [1, 3, 4])
def test_the_newest_groups_are_still_on_their_way(pending, emulator):
    chunks, out = np.arange(16, dtype=np.uint32), np.zeros((64, 4, 4), np.uint32)
    compiled(emulator, "copies", LATE=pending, USED=1)((1,), (64,), (chunks, out, 4, 0))
    expected = chunks.reshape(4, 4).copy()
    expected[4 - pending :] = 0xFFFFFFFF  # NaN in every type, and not what lay there before
    np.testing.assert_array_equal(out, np.broadcast_to(expected, out.shape))


def test_copies_of_one_block_are_not_the_next_ones(emulator):
    """A block ends with copies on their way; its successor's wait must not land them."""
    chunks, out = np.arange(16, dtype=np.uint32), np.zeros((3, 64, 4, 4), np.uint32)
    compiled(emulator, "copies", LATE=4)((3,), (64,), (chunks, out, 4, 0))
    assert (out == 0xFFFFFFFF).all()


@pytest.mark.parametrize("count", [128, 129])
def test_too_many_copies_are_refused(count, emulator):
    run = compiled(emulator, "copies", COUNT=count, THREADS=1)
    chunks, out = np.arange(4 * count, dtype=np.uint32), np.zeros((4 * count, 1), np.uint32)
    if count == 128:
        run((1,), (1,), (chunks, out, count, 0))
        np.testing.assert_array_equal(out[:, 0], chunks)
    else:
        with pytest.raises(LaunchError, match=r"copies: .*cp\.async with 128 copies of the thread on their way"):
            run((1,), (1,), (chunks, out, count, 0))


def test_misaligned_addresses_are_refused(emulator):
    chunks, out = np.arange(32, dtype=np.uint32), np.zeros((4, 4), np.uint32)
    where = r"at an address that is no multiple of 16, block \(0, 0, 0\), thread \(0, 0, 0\)"
    with pytest.raises(LaunchError, match=f"copies: misaligned address .*cp.async {where}"):
        compiled(emulator, "copies")((1,), (1,), (chunks, out, 4, 8))
    with pytest.raises(LaunchError, match=f"matrices: misaligned address .*ldmatrix {where}"):
        run = compiled(emulator, "matrices", OFFSET=2)
        run((1,), (32,), (np.zeros(256, np.uint16), np.zeros(256, np.uint32)))


def test_a_warp_with_lanes_missing_is_refused(emulator):
    a, c = np.zeros((16, 16), DTYPES["bfloat16"]), np.zeros((16, 8), np.float32)
    with pytest.raises(LaunchError, match=r"one_product: .*mma\.sync in a warp of which some lanes have returned"):
        compiled(emulator, "one_product", LANES=20)((1,), (32,), (a, a[:8], c, c.copy()))
    with pytest.raises(LaunchError, match=r"one_product: .*mma\.sync in a warp of which some lanes have returned"):
        compiled(emulator, "one_product")((1,), (20,), (a, a[:8], c, c.copy()))


def test_the_emulator_knows_which_of_them_wait():
    names = ("matrices", "one_product", "product", "copies", "hints", "pairs")
    assert [name for name in names if may_wait(CODE, name)] == ["matrices", "one_product", "product"]


# ---- the list is closed, and complete


def functions(text: str) -> set[str]:
    return set(re.findall(r"(?:__forceinline__|static inline) (?:void|unsigned|uint4) (\w+)\(", strip_comments(text)))


def test_every_instruction_has_a_twin():
    header = (ROOT / "kernels" / "ptx.cuh").read_text()
    instructions = functions(header[header.index("#else") : header.rindex("#endif")])
    assert len(instructions) == 12
    assert instructions <= functions(TWINS.read_text())


def test_inline_ptx_lives_in_one_header_and_what_only_hopper_has_in_two_others():
    files = [*(ROOT / "kernels").rglob("*.cu*"), *(ROOT / "chapters").rglob("*.cu*")]
    guilty = [file.name for file in files if re.search(r"\basm\b", strip_comments(file.read_text()))]
    assert sorted(guilty) == ["ptx.cuh", "sm90.cuh", "wgmma.cuh"]
