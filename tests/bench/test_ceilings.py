"""The machine's ceilings, the kernel that reads, and where the roofline puts a row."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import DATA
from tiny_vllm.bench.table.ceilings import Ceilings, measure_ceilings
from tiny_vllm.bench.table.floors import Work
from tiny_vllm.bench.table.known import Known
from tiny_vllm.bench.table.plot import save_roofline, seconds_of
from tiny_vllm.bench.table.report import ceilings_line
from tiny_vllm.bench.table.result import Cell, RowResult, Table
from tiny_vllm.bench.table.rows import TableRow
from tiny_vllm.cli_bench_table import terminated_by_exit
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.models.config import ModelConfig

NEVER = 0x9E3779B9  # of read_bandwidth.cu


@pytest.mark.parametrize("count", [1, 31, 32 * 8, 32 * 8 * 3 + 5, 777])
def test_the_kernel_reads_every_word(device, count):
    """A word that its thread's fold is not to be shows, wherever it stands; zeros alone write nothing."""
    kernel = KernelLibrary(device, np.float32).kernel("read_bandwidth.cu", "read_bandwidth")

    def read(words: np.ndarray) -> int:
        out = device.zeros(1, np.uint32)
        kernel((2,), (16,), (device.asarray(words), out, count))
        return int(device.to_host(out)[0])

    assert read(np.zeros(4 * count, np.uint32)) == 0
    for place in {0, 1, 2, 3, 4 * count // 2, 4 * count - 1}:
        words = np.zeros(4 * count, np.uint32)
        words[place] = NEVER
        assert read(words) == NEVER, place


def test_ceilings_of_a_device(device):
    config = ModelConfig.from_folder(DATA / "tiny" / "tiny")
    found = measure_ceilings(device, config, np.dtype(np.float32), [3, 1, 3], [2])
    assert (list(found.layers), list(found.head)) == ([1, 3], [2])
    assert min(found.copy, found.read, found.flops, *found.layers.values(), *found.head.values()) > 0
    assert Ceilings.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def result(row: TableRow, value: float, work: Work | None) -> RowResult:
    return RowResult(row, Known(), None, work, {"ours": Cell(value)})


@pytest.mark.parametrize(
    ("row", "value", "seconds"),
    [
        (TableRow("x", "decode", 4, 8, 5), 2.0, 0.002),
        (TableRow("x", "first-token", 1, 40), 20.0, 0.02),
        (TableRow("x", "prefill", 3, 40), 240.0, 0.5),
    ],
)
def test_what_a_rows_work_took(row, value, seconds):
    assert seconds_of(result(row, value, None), value) == pytest.approx(seconds)


def test_a_whole_workload_took_its_answers_over_their_rate():
    row = TableRow("x", "nano-vllm", 2)
    answers = sum(answer for _, answer in row.lengths)
    assert seconds_of(result(row, answers / 7, None), answers / 7) == pytest.approx(7)


@pytest.fixture
def table() -> Table:
    """1 TB/s and 100 TFLOP/s; a step of 10 GFLOP and 10 GB in 20 ms: 1 FLOP a byte, 0.5 TFLOP/s."""
    found = Table("m", "a card", "bfloat16", 3, Ceilings(1e12, 1e12, 1e14, {8: 1e-3}, {8: 5e-4}), ("ours",))
    found.rows.append(result(TableRow("decode-8", "decode", 8, 8, 5), 20.0, Work(1e10, 1e10)))
    found.rows.append(result(TableRow("start", "start"), 5.0, None))
    return found


def test_the_rooflines_points_and_roof(table, tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn: list[Any] = []
    plot: Callable[..., Any] = Axes.plot

    def seen(axes: Any, *arguments: Any, **style: Any) -> Any:
        drawn.append((arguments, style))
        return plot(axes, *arguments, **style)

    monkeypatch.setattr(Axes, "plot", seen)
    save_roofline(table, tmp_path / "roof.svg")
    (roof, _), (points, style) = drawn
    assert roof[0][1] == 100 and roof[1][1:] == [100, 100] and roof[1][0] == pytest.approx(roof[0][0])
    assert points[0] == (1.0,) and points[1] == pytest.approx((0.5,)) and style["label"] == "ours"
    assert "decode-8" in (tmp_path / "roof.svg").read_text(encoding="utf-8")


def test_the_picture_in_grey():
    """Every contender has a marker of its own."""
    from tiny_vllm.bench.table.plot import STYLES

    assert len({marker for _, marker in STYLES.values()}) == len(STYLES) == 4
    assert set(STYLES) == {"ours", "transformers", "compile", "vllm"}


def test_the_line_of_ceilings(table):
    assert ceilings_line(table) == (
        "a card, bfloat16: copy 1 TB/s, read 1 TB/s, 100 TFLOP/s; all weight products: 8 rows 1.500 ms"
    )


def test_sigterm_ends_what_was_started(tmp_path: Path):
    with pytest.raises(SystemExit) as ended, terminated_by_exit():
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it went on")
    assert ended.value.code == 143 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
