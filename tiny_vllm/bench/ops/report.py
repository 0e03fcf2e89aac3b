"""What was measured, for a reader and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tiny_vllm.bench.ops.operation import Operation
from tiny_vllm.bench.ops.timer import Machine, Row

CELLS = ("us", "GB/s", "TFLOP/s", "of floor")  # of one set of operations


def as_dicts(machine: Machine | None, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """For JSON: seconds, bytes and FLOPs, and by set what came of them; null where nothing was measured."""
    found = []
    for row in rows:
        one = row.operation
        floor = None if machine is None else one.floor(machine.bandwidth, machine.flops)
        about = {"operation": one.name, "rows": one.rows, "shape": one.shape}
        about |= {"bytes": one.num_bytes, "flops": one.flops, "floor_seconds": floor}
        found.append(about | {"ops": {name: rates(machine, one, each) for name, each in row.seconds.items()}})
    return found


def rates(machine: Machine | None, operation: Operation, seconds: float | None) -> dict[str, float] | None:
    """Of one measured time: bytes and FLOPs a second, and the floor's share of it; None without a time."""
    if machine is None or seconds is None:
        return None
    found = {"bytes_per_second": operation.num_bytes / seconds, "flops_per_second": operation.flops / seconds}
    floor = operation.floor(machine.bandwidth, machine.flops)
    return {"seconds": seconds, **found, "floor_share": floor / seconds}


def table(machine: Machine | None, rows: Iterable[Row]) -> str:
    """Markdown, a line an operation, the sets of operations beside one another."""
    rows = list(rows)
    names = [] if machine is None or not rows else list(rows[0].seconds)
    heads = ["operation", "rows", "shape", "bytes", "FLOPs"] + (["floor us"] if names else [])
    heads += [f"{name} {cell}" for name in names for cell in CELLS]
    lines = [heads, ["---"] * 3 + ["---:"] * (len(heads) - 3)]
    lines += [_cells(each, names) for each in as_dicts(machine, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(row: dict[str, Any], names: Iterable[str]) -> list[str]:
    cells = [row["operation"], str(row["rows"]), row["shape"], _scaled(row["bytes"], "B"), _scaled(row["flops"], "")]
    if row["floor_seconds"] is not None:
        cells.append(f"{row['floor_seconds'] * 1e6:.2f}")
    for name in names:
        cells += rate_cells(row["ops"][name])
    return cells


def rate_cells(found: dict[str, float] | None) -> list[str]:
    """CELLS of what `rates` gave."""
    if found is None:
        return ["-"] * len(CELLS)
    numbers = found["bytes_per_second"] / 1e9, found["flops_per_second"] / 1e12
    return [f"{found['seconds'] * 1e6:.2f}", f"{numbers[0]:.0f}", f"{numbers[1]:.2f}", f"{found['floor_share']:.0%}"]


def _scaled(value: int, unit: str) -> str:
    """Three or four digits: 12.6 MB."""
    for power, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{value / power:.4g} {letter}{unit}"
    return f"{value} {unit}".rstrip()
