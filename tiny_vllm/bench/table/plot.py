"""The roofline: what each row reached, beside what the machine allows at that many FLOPs a byte."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tiny_vllm.bench.table.report import LABELS
from tiny_vllm.bench.table.result import RowResult, Table
from tiny_vllm.errors import UserError

# Okabe and Ito's colours, told apart by colour-blind readers too; the markers tell them apart in grey.
STYLES = {
    "ours": ("#D55E00", "o"),
    "transformers": ("#56B4E9", "s"),
    "compile": ("#009E73", "^"),
    "vllm": ("#0072B2", "D"),
}
DPI, ENDINGS = 150, (".png", ".svg", ".pdf")


def seconds_of(result: RowResult, value: float) -> float:
    """Of what the row's work is counted for: a step, all prompts, a whole workload."""
    if not result.row.higher_is_better:
        return value / 1e3
    lengths = result.row.lengths
    return sum(prompt if result.row.kind == "prefill" else answer for prompt, answer in lengths) / value


def check_plot(path: Path) -> None:
    """UserError for what `save_roofline` would refuse: before anything is measured."""
    if find_spec("matplotlib") is None:
        raise UserError('the picture needs matplotlib; pip install "tiny-vllm[notebooks]"')
    if path.suffix not in ENDINGS:
        raise UserError(f"--plot is {path}; give a name that ends in {', '.join(ENDINGS)}")


def save_roofline(table: Table, path: Path) -> None:
    """Write the picture, in the format that the name ends in."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.add_subplot()
    _draw_roof(axes, table)
    for name in table.contenders:
        _draw_points(axes, table, name)
    _name_rows(axes, table)
    axes.set(xscale="log", yscale="log", xlabel="FLOPs a byte that must move", ylabel="TFLOP/s")
    axes.set_ylim(bottom=axes.get_ylim()[0] / 8)  # room for the rows' names below the points
    axes.set_title(f"{table.card}, {table.dtype}")
    axes.legend(loc="upper left")
    axes.grid(True, which="major", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    figure.savefig(path, dpi=DPI)


def _draw_roof(axes: Any, table: Table) -> None:
    """Bandwidth of a copy times intensity, up to the rate of a large product."""
    found = table.ceilings
    ridge = found.flops / found.copy
    intensities = [each.work.flops / each.work.num_bytes for each in table.rows if each.work]
    low, high = min([*intensities, ridge]) / 3, max([*intensities, ridge]) * 3
    roof = [each * found.copy / 1e12 for each in (low, ridge)] + [found.flops / 1e12]
    label = f"{found.copy / 1e12:.3g} TB/s, {found.flops / 1e12:.3g} TFLOP/s"
    axes.plot([low, ridge, high], roof, color="black", linewidth=1.5, label=label)


def _draw_points(axes: Any, table: Table, name: str) -> None:
    colour, marker = STYLES[name]
    points = []
    for result in table.rows:
        value = result.cells[name].value
        if value is None or result.work is None:
            continue
        rate = result.work.flops / seconds_of(result, value) / 1e12
        points.append((result.work.flops / result.work.num_bytes, rate))
    if points:
        x, y = zip(*points)
        axes.plot(x, y, marker, color=colour, markeredgecolor="black", markersize=8, label=LABELS[name])


def _name_rows(axes: Any, table: Table) -> None:
    """At the foot of a line through the row's points: beside the points, names of near rows would overlap."""
    for result in table.rows:
        if result.work is not None:
            at = result.work.flops / result.work.num_bytes
            axes.axvline(at, color="0.75", linewidth=0.8, linestyle=":", zorder=0)
            where = {"rotation": 90, "ha": "right", "va": "bottom", "fontsize": 8}
            axes.text(at, 0.02, result.row.name, transform=axes.get_xaxis_transform(), **where)
