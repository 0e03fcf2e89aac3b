"""Check mode finds every planted fault of the zoo: its kind, its file, its line, and the first thread that does it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_vllm.device.emulator import Emulator, RawModule
from tiny_vllm.errors import KernelCheckError

ZOO = Path(__file__).parent / "zoo"
DEVICE = Emulator()


def floats(count: int) -> np.ndarray:
    return (np.arange(count) % 7 - 2.5).astype(np.float32)


def zeros(count: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(count, dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@dataclass(frozen=True)
class Case:
    """One kernel's launch; thread and block: who does it first. argument and index: where, if that is told."""

    file: str
    kernel: str
    args: tuple[Any, ...]
    thread: int
    block: int = 0
    threads: int = 64
    grid: int = 1
    argument: str | None = None
    index: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    shared_mem: int = 0


QKV = floats(5 * 24).reshape(5, 24)
CASES = [
    Case("bounds.cu", "bounds_no_guard", (floats(100), zeros(100), 100), 36, 1, grid=2, index=100),
    Case("bounds.cu", "bounds_loop", (floats(70), zeros(64), 70), 6, argument="x", index=70),
    Case("bounds.cu", "bounds_device_function", (floats(40), zeros(40), 40), 0, argument="x", index=-1),
    Case("bounds.cu", "bounds_template", (zeros(32), 1), 0, threads=32, argument="tile", index=32),
    Case("bounds.cu", "bounds_vector", (floats(30), zeros(16), 30), 7, threads=32, argument="x", index=28),
    Case("bounds.cu", "bounds_shared_index", (zeros(64), 1), 63, argument="s", index=64),
    Case("bounds.cu", "bounds_local", (floats(5), zeros(2), 5), 0, threads=2, index=4),
    Case("bounds.cu", "bounds_dynamic", (floats(50), zeros(1), 50), 8, threads=32, argument="row", index=40,
         shared_mem=160),
    Case("bounds.cu", "bounds_row_view", (QKV[:, 8:16], zeros(5), 24, 8), 0, threads=1, grid=5, argument="q", index=8),
    Case("bounds.cu", "bounds_atomic", (ints(0, 3, 4, 1), zeros(4, np.int32), 4), 2, argument="counts", index=4),
    Case("races.cu", "race_tree", (floats(64), zeros(1), 64), 1, argument="partial", index=1),
    Case("races.cu", "race_before_tree", (floats(64), zeros(64), 64), 32, argument="partial", index=31),
    Case("races.cu", "race_total", (floats(64), zeros(1), 64), 1, argument="total"),
    Case("races.cu", "race_device_function", (floats(64), zeros(64), 64), 1, argument="partial", index=0),
    Case("races.cu", "race_template", (floats(64), zeros(64), 64), 1, argument="buffer", index=1),
    Case("races.cu", "race_reuse", (floats(96), zeros(32), 96), 1, threads=32, argument="tile", index=1),
    Case("races.cu", "race_blocks", (floats(3), zeros(1), 3), 0, 1, threads=32, grid=3, argument="y", index=0),
    Case("races.cu", "race_neighbour_block", (floats(128), 128), 1, 0, grid=2, argument="x", index=1),
    Case("races.cu", "race_warp", (floats(32), zeros(32), 32), 1, threads=32, argument="s", index=1),
    Case("races.cu", "race_vector", (floats(64), zeros(32), 64), 1, threads=16, argument="y", index=0),
    Case("races.cu", "race_shuffle", (floats(32), zeros(32), 32), 31, threads=32, argument="s", index=30),
    Case("races.cu", "race_bytes", (zeros(64, np.uint8), zeros(64, np.uint8), 64), 1, argument="s", index=0),
    Case("barriers.cu", "barrier_after_return", (floats(48), zeros(48), 48), 0),
    Case("barriers.cu", "barrier_in_if", (floats(64), zeros(1), 64), 32),
    Case("barriers.cu", "barrier_in_device_function", (floats(64), zeros(64), 64), 0),
    Case("barriers.cu", "barrier_in_template", (floats(64), zeros(64), 64), 32),
    Case("unwritten.cu", "unwritten_tail", (floats(60), zeros(64), 60), 0, argument="partial", index=63),
    Case("unwritten.cu", "unwritten_sum", (floats(5), DEVICE.empty(8, np.float32), 5), 0, threads=8, argument="y",
         index=0),
    Case("unwritten.cu", "unwritten_in_device_function", (zeros(32, np.int32), 1), 0, threads=32, argument="counters",
         index=1),
    Case("unwritten.cu", "unwritten_in_template", (floats(60), zeros(8), 60), 7, threads=8, argument="rows", index=60,
         shared_mem=256),
    Case("unwritten.cu", "unwritten_vector", (floats(64), zeros(16), 64), 15, argument="s"),
    Case("lanes.cu", "lanes_in_if", (floats(32), zeros(32), 32), 0, threads=32),
    Case("lanes.cu", "lanes_in_loop", (floats(48), zeros(32), 48), 0, threads=32),
    Case("lanes.cu", "lanes_in_device_function", (floats(32), zeros(32), 32), 16, threads=32),
    Case("lanes.cu", "lanes_in_template", (floats(32), zeros(32), 32), 0, threads=32),
    Case("addresses.cu", "misaligned_rows", (floats(35), zeros(5), 7), 1, threads=5, argument="x", index=7),
    Case("addresses.cu", "misaligned_in_device_function", (floats(8), zeros(20), 8), 0, threads=32, argument="y",
         index=1),
    Case("addresses.cu", "misaligned_in_template", (floats(72), zeros(16), 72), 0, threads=16, argument="s"),
    Case("addresses.cu", "null_pointer", (zeros(4), 1), 0, threads=4),
    Case("addresses.cu", "null_in_device_function", (floats(3), zeros(4), 3), 3, threads=4),
    Case("addresses.cu", "wild_pointer", (floats(3), zeros(4), 100_000), 0, threads=4),
    Case("ends.cu", "endless_wait", (ints(0), zeros(4, np.int32), 1), 0, threads=4, settings={"timeout": 0.3}),
    Case("ends.cu", "endless_halving", (ints(0), zeros(4, np.int32), 8), 0, threads=4, settings={"timeout": 0.3}),
    Case("ends.cu", "division_by_zero", (ints(1, 2, 3, 4), zeros(4, np.int32), 0), 0, threads=4),
    Case("ends.cu", "division_in_template", (ints(1, 2, 3, 4), zeros(4, np.int32), 1), 0, threads=4),
]  # fmt: skip


@cache
def module(file: str, **settings: Any) -> RawModule:
    code = f'#line 1 "tests/device/zoo/{file}"\n' + (ZOO / file).read_text(encoding="utf-8")
    return RawModule(code, check=True, **settings)


def planted(case: Case) -> tuple[int, str]:
    """Line and kind of the fault: the next mark from the kernel's helper functions on."""
    lines = (ZOO / case.file).read_text(encoding="utf-8").split("\n")
    marks = [(n, match[1]) for n, line in enumerate(lines, 1) if (match := re.search(r"// FAULT (.+)$", line))]
    starts = [n for n, line in enumerate(lines, 1) if "__global__" in line]
    index = next(i for i, n in enumerate(starts) if f" {case.kernel}(" in lines[n - 1])
    [found] = [mark for mark in marks if _owner(mark[0], starts, lines) == index]
    return found


def _owner(line: int, starts: list[int], lines: list[str]) -> int:
    """The kernel that a line belongs to: its own, or the next one's for a helper function above it."""
    above = max((i for i, n in enumerate(starts) if n <= line), default=-1)
    closed = above < 0 or "}" in [text for text in lines[starts[above] : line]]
    return above + 1 if closed else above


def launch(case: Case, **settings: Any) -> KernelCheckError:
    kernel = module(case.file, **{**case.settings, **settings}).get_function(case.kernel)
    with pytest.raises(KernelCheckError) as caught:
        kernel((case.grid,), (case.threads,), case.args, shared_mem=case.shared_mem)
    return caught.value


def test_the_zoo_is_complete():
    kernels = [name for path in ZOO.glob("*.cu") for name in re.findall(r"__global__ void (\w+)", path.read_text())]
    assert sorted(kernels) == sorted(case.kernel for case in CASES)
    assert len(kernels) >= 40


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_a_planted_fault_is_named(case):
    line, kind = planted(case)
    error = launch(case)
    [found] = [f for f in error.findings if (f.kind, f.line) == (kind, line)]
    assert found.file == f"tests/device/zoo/{case.file}" and found.kernel == case.kernel
    assert (found.thread, found.block) == ((case.thread, 0, 0), (case.block, 0, 0))
    if case.argument is not None:
        assert found.argument == case.argument
    if case.index is not None:
        assert found.index == case.index
    assert f"{found.file}:{line}: {kind}: thread {case.thread} " in str(error)
    assert {f.kind for f in error.findings} == {kind}


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.file in ("races.cu", "barriers.cu", "bounds.cu")], ids=lambda case: case.kernel
)
def test_the_reverse_order_finds_it_too(case):
    line, kind = planted(case)
    assert (kind, line) in {(f.kind, f.line) for f in launch(case, order="reverse").findings}
