"""The table for a reader: Markdown, and the lines that tell how far a run has come."""

from __future__ import annotations

from tiny_vllm.bench.table.contenders import OURS
from tiny_vllm.bench.table.result import Cell, RowResult, Table
from tiny_vllm.bench.table.verdict import NONE

LABELS = {OURS: "ours", "transformers": "transformers", "compile": "torch.compile", "vllm": "vLLM"}


def markdown(table: Table) -> str:
    """The machine, the table, and below it what the cells have no room for."""
    heads = ["row", "unit", *(LABELS[name] for name in table.contenders)]
    heads += ["floor", "of floor", "target", "vLLM's best", "verdict"]
    lines = [heads, ["---", "---", *["---:"] * (len(heads) - 3), "---"]]
    lines += [_cells(row, table) for row in table.rows]
    grid = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    notes = "\n".join(f"- {note}" for note in _notes(table))
    return f"{ceilings_line(table)}\n\n{grid}\n\n{notes}\n"


def ceilings_line(table: Table) -> str:
    """The machine, and what it reaches."""
    found = table.ceilings
    rates = f"copy {found.copy / 1e12:.3g} TB/s, read {found.read / 1e12:.3g} TB/s, {found.flops / 1e12:.3g} TFLOP/s"
    products = ", ".join(
        f"{rows} rows {1e3 * (found.layers[rows] + found.head[rows]):.3f} ms"
        for rows in sorted(found.layers.keys() & found.head.keys())
    )
    return f"{table.card}, {table.dtype}: {rates}" + (f"; all weight products: {products}" if products else "")


def row_line(result: RowResult) -> str:
    """One row in one line."""
    cells = "; ".join(f"{LABELS[name]} {each.why or _figure(each.value)}" for name, each in result.cells.items())
    return f"{result.row.name} ({result.row.unit}): {cells}; floor {_figure(result.floor)}: {result.verdict}"


def _cells(result: RowResult, table: Table) -> list[str]:
    cells = [result.row.title, result.row.unit]
    cells += [_cell(result, name) for name in table.contenders]
    share = "-" if result.floor_share is None else f"{result.floor_share:.0%}"
    return [
        *cells,
        _figure(result.floor),
        share,
        _figure(result.known.target),
        _figure(result.known.vllm_best),
        str(result.verdict),
    ]


def _cell(result: RowResult, name: str) -> str:
    """A figure and how many times as fast ours is; for a contender without one a word, explained below the table."""
    cell, ratio = result.cells[name], result.ratio(name)
    if cell.value is None:
        return cell.why.partition(":")[0] if cell.why else NONE
    return _figure(cell.value) + ("" if name == OURS or ratio is None else f" ({ratio:.2f}x)")


def _notes(table: Table) -> list[str]:
    notes = [f"medians of {table.repeats}, the contenders in turn; in brackets how many times as fast ours is"]
    for name, versions in table.versions.items():
        notes.append(f"{LABELS[name]}: {', '.join(f'{package} {version}' for package, version in versions.items())}")
    if table.first_starts:
        starts = ", ".join(f"{LABELS[name]} {seconds:.1f} s" for name, seconds in table.first_starts.items())
        notes.append(f"first start to first token: {starts}")
    return notes + _reasons(table) + list(dict.fromkeys(table.notes))


def _reasons(table: Table) -> list[str]:
    """Why cells are empty; a contender that is out of every row for one reason gets one line."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in table.rows:
        for name, cell in result.cells.items():
            if _is_worth_telling(cell):
                reasons.setdefault((name, cell.why), []).append(result.row.name)
    return [f"{LABELS[name]}, {', '.join(rows)}: {why}" for (name, why), rows in reasons.items()]


def _is_worth_telling(cell: Cell) -> bool:
    return ":" in cell.why


def _figure(value: float | None) -> str:
    """Three digits, or all of a large number."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
