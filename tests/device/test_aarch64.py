"""The emulator on AArch64: its C++ compiled for that CPU and run under QEMU, on the kernels of these tests.

Debian: apt install g++-aarch64-linux-gnu qemu-user. Expected values are NumPy's.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiny_vllm.device.emulator.compiler import CPP, Compiler
from tiny_vllm.device.emulator.translate import callable_kernels, translation_unit
from tiny_vllm.device.emulator.watchdog import ILLEGAL_ADDRESS, TIMEOUT
from tiny_vllm.device.signature import kernel_names

HERE = Path(__file__).parent
CROSS = ("aarch64-linux-gnu-g++", "qemu-aarch64")
SYSROOT = "/usr/aarch64-linux-gnu"
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not all(map(shutil.which, CROSS)), reason=f"needs {' and '.join(CROSS)}"),
]


def run(command: Sequence[Any], **settings: Any) -> bytes:
    done = subprocess.run(list(map(str, command)), capture_output=True, timeout=300, **settings)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


class Program:
    """The kernels of one file of tests/device/kernels, built for AArch64 with the emulator's own flags."""

    def __init__(self, file: str, folder: Path, options: Sequence[str] = ()) -> None:
        text = (HERE / "kernels" / file).read_text()
        self.names = callable_kernels(text, kernel_names(text))
        entries = ", ".join(f"emulator_fibers_{i}, emulator_plain_{i}" for i in range(len(self.names)))
        table = f'extern "C" {{ void (*cross_kernels[])(emulator::Launch*) = {{{entries}}}; }}\n'
        unit = folder / "unit.cpp"
        unit.write_text(translation_unit(text, self.names, file) + table)
        cross = Compiler(CROSS[:1], "g++ 12.2.0")
        native = ("-shared", "-march=native", "-mcpu=native")
        flags = [flag for flag in cross.kernel_flags() if flag not in native]
        self.path = folder / "program"
        run([*cross.command, *flags, *options, "-std=c++17", "-c", unit, "-o", folder / "unit.o"])
        sources = [CPP / "guard.cpp", HERE / "cross_driver.cpp", folder / "unit.o"]
        run([*cross.command, "-std=c++17", "-O2", "-pthread", f"-I{CPP}", *sources, "-o", self.path])

    def __call__(
        self, name: str, grid: Any, block: Any, args: Any, shared: int = 0, plain: bool = False, timeout_ms: int = 0
    ) -> tuple[int, str]:
        """One launch; arrays are written in place. -> (reason, error)."""
        index = self.names.index(name) * 2 + plain
        shape = [*grid, *[1] * (3 - len(grid)), *block, *[1] * (3 - len(block))]
        data = [struct.pack("<11I", 1, index, timeout_ms, *shape, shared, len(args))]
        for arg in args:
            value = (
                np.float32(arg) if isinstance(arg, float) else np.asarray(arg, None if hasattr(arg, "dtype") else "i4")
            )
            data.append(struct.pack("<II", isinstance(arg, np.ndarray), value.nbytes) + value.tobytes())
        answer = run([CROSS[1], "-L", SYSROOT, self.path], input=b"".join(data))
        (reason,), error, at = struct.unpack_from("<i", answer), answer[4:516].partition(b"\0")[0], 516
        for arg in args:
            size = getattr(arg, "nbytes", 4)
            if isinstance(arg, np.ndarray):
                arg[...] = np.frombuffer(answer[at : at + size], arg.dtype).reshape(arg.shape)
            at += size
        assert at == len(answer)
        return reason, error.decode()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory):
    built: dict[Any, Program] = {}

    def program(file: str, *options: str) -> Program:
        if (file, options) not in built:
            built[file, options] = Program(file, tmp_path_factory.mktemp("aarch64"), options)
        return built[file, options]

    return program


@pytest.fixture
def threads(program):
    return program("threads.cu")


def ints(*shape: int) -> np.ndarray:
    return np.full(shape, -1, np.int32)


# ---- barriers and warps


def test_it_is_an_aarch64_program(threads):
    assert threads.path.read_bytes()[18:20] == b"\xb7\x00"  # e_machine of the ELF header: EM_AARCH64


@pytest.mark.parametrize("block", [(1,), (33,), (5, 3, 2), (1000,), (32, 32)])
def test_all_threads_meet_at_a_barrier(threads, block):
    count = int(np.prod(block))
    out = ints(3, count)
    assert threads("mirror", (3,), block, (out,)) == (0, "")
    x, y, _ = (*block, 1, 1)[:3]
    t = np.arange(count)[::-1]
    np.testing.assert_array_equal(out, np.tile(t % x + 100 * (t // x % y) + 10000 * (t // (x * y)), (3, 1)))


@pytest.mark.parametrize("count", [1, 50, 64])
def test_many_barriers_keep_the_order(threads, count):
    out, baton = ints(count), 1
    assert threads("relay", (1,), (count,), (out, 200)) == (0, "")
    for i in range(200):
        baton = baton * 3 % 1000003 + i % count
    assert (out == baton).all()


def test_a_barrier_does_not_wait_for_threads_that_returned(threads):
    out = ints(70)
    assert threads("early_exit", (1,), (70,), (out,)) == (0, "")
    stays = np.arange(70) % 3 != 1
    assert (out[stays] == np.arange(70)[stays].sum()).all() and (out[~stays] == -1).all()


@pytest.mark.parametrize("width", [32, 16, 8])
def test_shuffles(threads, rng, width):
    x, out = rng.integers(-1000, 1000, 64).astype(np.int32), ints(4, 64)
    assert threads("shuffles", (1,), (64,), (x, out, width)) == (0, "")
    lane = np.arange(64)
    group = lane // width * width

    def source(wanted: np.ndarray) -> np.ndarray:
        return x[np.where((wanted >= group) & (wanted < group + width), wanted, lane)]

    expected = [x[group + 5 % width], source(lane - 3), source(lane + 2), source(group + ((lane - group) ^ 6))]
    np.testing.assert_array_equal(out, expected)


def test_votes_of_a_warp(threads, rng):
    x, out = rng.integers(0, 100, 64).astype(np.int32), np.zeros((3, 64), np.uint32)
    assert threads("votes_of_warp", (1,), (64,), (x, out)) == (0, "")
    for t in range(64):
        half = slice(t // 16 * 16, t // 16 * 16 + 16)
        odd = x[half] & 1
        ballot = int((odd.astype(np.int64) << np.arange(16)).sum()) << (t % 32 // 16 * 16)
        assert (out[0, t], out[1, t]) == (ballot, odd.any() * 2 + odd.all())


def test_atomics(threads, rng):
    x = rng.integers(-50, 5000, 3 * 96 - 7).astype(np.int32)
    bins, odd, total, top = np.zeros(16, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.float32), ints(1)
    assert threads("histogram", (3,), (96,), (x, x.size, bins, odd, total, top)) == (0, "")
    np.testing.assert_array_equal(bins, np.bincount(x & 15, minlength=16))
    assert (odd[0], total[0], top[0]) == ((x & 1).sum(), x.size / 2, x.max())


def test_shared_memory_starts_with_nan(threads):
    out = np.zeros(64, np.float32)
    assert threads("read_unwritten", (1,), (32,), (out,), shared=128) == (0, "")
    assert np.isnan(out).all()


# ---- what a switch must preserve


def test_floats_in_registers_outlive_a_barrier(program, rng):
    x, out, rounds = rng.standard_normal(96).astype(np.float32), np.full(96, np.nan, np.float32), 5
    assert program("registers.cu")("held_floats", (1,), (96,), (x, out, rounds)) == (0, "")
    held = [x.astype(np.float64) * (i + 1) for i in range(16)]
    for _ in range(rounds):
        for i in range(16):
            held[i] = held[i] + held[(i + 5) % 16] * 0.25
    np.testing.assert_allclose(out, sum(h * (i - 7) for i, h in enumerate(held)), rtol=2e-5, atol=1e-3)


def test_integers_in_registers_outlive_a_shuffle(program, rng):
    x, out, rounds = rng.integers(-(2**31), 2**31 - 1, 96).astype(np.int32), ints(96), 33
    assert program("registers.cu")("held_ints", (1,), (96,), (x, out, rounds)) == (0, "")
    held = [x.astype(np.uint32) * np.uint32(i + 1) for i in range(16)]
    for r in range(rounds):
        passed = held[r & 15][np.arange(96) ^ 1]
        for i in range(16):
            held[i] = held[i] * np.uint32(3) + held[(i + 5) % 16] + passed
    expected = np.zeros(96, np.uint32)
    for h in held:
        expected = expected * np.uint32(31) + h
    np.testing.assert_array_equal(out.view(np.uint32), expected)


@pytest.mark.parametrize(("rows", "hidden"), [(3, 33), (7, 576)])
@pytest.mark.parametrize("name", ["rms_norm_tree", "rms_norm_warp"])
def test_rms_norm(program, rng, name, rows, hidden):
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, hidden), hidden))
    out = np.full((rows, hidden), np.nan, np.float32)
    assert program("reduction.cu")(name, (rows,), (128,), (x, weight, out, hidden, 1e-5)) == (0, "")
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


# ---- 16-bit types

ALL_BITS = np.arange(1 << 16, dtype=np.uint16)
PORTABLE = "-DEMULATOR_PORTABLE_HALF"


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("options", [(), (PORTABLE,)], ids=["own", "portable"])
@pytest.mark.parametrize(("name", "dtype"), [("half", np.dtype(np.float16)), ("bfloat16", BFLOAT16)])
def test_every_16_bit_number(program, name, dtype, options, plain):
    x, out = ALL_BITS.view(dtype), np.zeros(1 << 16, np.float32)
    launch = partial(program("intrinsics.cu", *options), grid=(256,), block=(256,), plain=plain)
    assert launch(f"from_{name}", args=(x, out, x.size)) == (0, "")
    np.testing.assert_array_equal(out, x.astype(np.float32))
    back = np.zeros(1 << 16, np.uint16)
    assert launch(f"to_{name}", args=(out, back, x.size)) == (0, "")
    number = ~np.isnan(out)
    np.testing.assert_array_equal(back[number], ALL_BITS[number])
    assert np.isnan(back[~number].view(dtype).astype(np.float32)).all()


@pytest.mark.parametrize("options", [(), (PORTABLE,)], ids=["own", "portable"])
@pytest.mark.parametrize(("name", "dtype"), [("half", np.dtype(np.float16)), ("bfloat16", BFLOAT16)])
def test_rounding_to_16_bits(program, rng, name, dtype, options):
    bits = rng.integers(0, 1 << 32, 40_000, dtype=np.uint32)
    halves = ALL_BITS[::7].view(dtype).astype(np.float32)
    with np.errstate(all="ignore"):
        ties = (halves[1:] + halves[:-1]) / 2
        x = np.concatenate([bits.view(np.float32), halves, np.nextafter(halves, np.float32(np.inf)), ties])
    x = x[~np.isnan(x)]
    out = np.zeros(x.size, np.uint16)
    launch = program("intrinsics.cu", *options)
    assert launch(f"to_{name}", (-(-x.size // 256),), (256,), (x, out, x.size)) == (0, "")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, x.astype(dtype).view(np.uint16))


# ---- launches that end early


def test_a_trap_and_an_endless_loop(program):
    faults = program("faults.cu")
    assert faults("trap", (1,), (64,), (ints(64), 40))[0] == 1
    flag = np.zeros(1, np.int32)
    for name in ("spin", "spin_behind_barrier"):
        assert faults(name, (1,), (64,), (flag, ints(64)), timeout_ms=500)[0] == TIMEOUT


def test_an_address_outside(program):
    faults, far = program("faults.cu"), np.array([1 << 44], np.int64)
    for name in ("far_write", "far_write_on_fiber"):
        assert faults(name, (1,), (64,), (ints(64), far[0]))[0] == ILLEGAL_ADDRESS


def test_threads_that_wait_for_each_other(program):
    reason, error = program("faults.cu")("missing_lanes", (1,), (32,), (ints(32),))
    assert reason == 3 and error.startswith("deadlock in block (0, 0, 0); thread 0 waits at a warp operation")


def test_an_integer_division_by_zero_is_not_noticed(program):
    """As on a GPU: AArch64 answers 0 and raises nothing."""
    out = ints(32)
    assert program("faults.cu")("divide", (1,), (32,), (out, 0)) == (0, "")
    assert (out == 0).all()
