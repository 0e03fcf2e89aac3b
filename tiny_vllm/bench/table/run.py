"""Runs the table: the ceilings first, then row by row, one measurement of every contender in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny_vllm.bench.table.ceilings import Ceilings
from tiny_vllm.bench.table.child import CEILINGS
from tiny_vllm.bench.table.contenders.base import Setup
from tiny_vllm.bench.table.entrant import Entrant, Say
from tiny_vllm.bench.table.floors import Model, floor, head_rows, layer_rows, work
from tiny_vllm.bench.table.known import known
from tiny_vllm.bench.table.measure import Sample, each_figure, figure
from tiny_vllm.bench.table.process import ContenderError, ContenderProcess
from tiny_vllm.bench.table.report import ceilings_line, row_line
from tiny_vllm.bench.table.result import Cell, RowResult, Table
from tiny_vllm.bench.table.rows import TableRow
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig

STARTS = 2  # at most, of a row: each is a whole start


@dataclass(frozen=True)
class Plan:
    """names: the contenders. repeats: samples of each in a row. seconds: that one answer of a process may take.
    logs: a folder for what the processes print.
    """

    names: Sequence[str]
    setup: Setup
    repeats: int
    seconds: float
    logs: Path


def run_table(plan: Plan, rows: Iterable[TableRow], after_row: Callable[[Table], None], say: Say = print) -> Table:
    """Measure all rows, that of starts last; after_row gets what there is so far. UserError without ceilings."""
    rows = sorted(rows, key=lambda row: row.kind == "start")
    table, model = _empty_table(plan, rows, say)
    entrants = [Entrant(name, plan.setup, plan.logs, plan.seconds, say) for name in plan.names]
    try:
        _enter(table, entrants, [row for row in rows if row.kind != "start"])
        for row in rows:
            cells = _starts(plan, row, entrants) if row.kind == "start" else _measure(plan, row, entrants)
            against = known(row.name, model.config, table.card)
            limit = floor(row, model, table.ceilings)
            table.rows.append(RowResult(row, against, limit, work(row, model), cells))
            _note_entrants(table, entrants)
            say(row_line(table.rows[-1]))
            after_row(table)
    finally:
        for each in entrants:
            each.leave()
    return table


def measure_machine(plan: Plan, rows: Sequence[TableRow]) -> dict[str, Any]:
    """The ceilings that the floors of `rows` need, in a process that leaves nothing on the GPU."""
    settings: dict[str, Any] = {name: getattr(plan.setup, name) for name in ("model", "device", "dtype")}
    settings["layer_rows"] = sorted(set().union(*map(layer_rows, rows)))
    settings["head_rows"] = sorted(set().union(*map(head_rows, rows)))
    try:
        with ContenderProcess(CEILINGS, settings, plan.logs / "ceilings.log", plan.seconds) as process:
            return process.ready["ceilings"]
    except ContenderError as error:
        raise UserError(f"the machine's own ceilings could not be measured: {error}") from None


def _empty_table(plan: Plan, rows: Sequence[TableRow], say: Say) -> tuple[Table, Model]:
    found = measure_machine(plan, rows)
    about = {name: found.pop(name) for name in ("card", "dtype", "element", "is_gpu")}
    ceilings = Ceilings.from_dict(found)
    table = Table(plan.setup.model, about["card"], about["dtype"], plan.repeats, ceilings, tuple(plan.names))
    if not about["is_gpu"]:
        table.notes.append("measured on the emulator: no figure says anything about a GPU")
    say(ceilings_line(table))
    return table, Model(ModelConfig.from_folder(plan.setup.model), about["element"])


def _enter(table: Table, entrants: Sequence[Entrant], rows: Sequence[TableRow]) -> None:
    """One after another: an engine that sizes its cache by the free memory must not meet another that does."""
    for each in entrants:
        if not all(each.refuses(row) for row in rows):
            each.enter()
            table.notes += [each.kind.note] if each.kind.note else []
    _note_entrants(table, entrants)


def _note_entrants(table: Table, entrants: Sequence[Entrant]) -> None:
    table.versions = {each.name: each.versions for each in entrants if each.versions}
    table.first_starts = {each.name: each.first_start for each in entrants if each.first_start is not None}


def _measure(plan: Plan, row: TableRow, entrants: Sequence[Entrant]) -> dict[str, Cell]:
    """A sample of every contender, then the next of each. Who fails is out of this row, and back in the next one."""
    whys = {each.name: each.refuses(row) for each in entrants}
    samples: dict[str, list[Sample]] = {each.name: [] for each in entrants}
    for turn in range(-1, plan.repeats):  # turn -1 warms up
        for each in entrants:
            if whys[each.name]:
                continue
            try:
                if turn < 0:
                    each.warm_up(row)
                elif (found := each.sample(row, turn)) is not None:
                    samples[each.name].append(found)
            except ContenderError as error:
                whys[each.name] = f"failed: {error}"
    return _cells(row, whys, samples)


def _starts(plan: Plan, row: TableRow, entrants: Sequence[Entrant]) -> dict[str, Cell]:
    """Fresh processes in turn, when no other holds the GPU. A first start fills caches, and is none of the samples."""
    for each in entrants:
        each.leave()
    whys = {each.name: each.refuses(row) for each in entrants}
    samples: dict[str, list[Sample]] = {each.name: [] for each in entrants}
    for turn in range(min(STARTS, plan.repeats)):
        for each in entrants:
            if whys[each.name]:
                continue
            try:
                if each.first_start is None:
                    each.start_seconds(turn)
                samples[each.name].append(Sample(each.start_seconds(turn), None, 1, 1))
            except ContenderError as error:
                whys[each.name] = f"failed: {error}"
    return _cells(row, whys, samples)


def _cells(row: TableRow, whys: dict[str, str], samples: dict[str, list[Sample]]) -> dict[str, Cell]:
    return {
        name: Cell(why=why) if why else Cell(figure(row, samples[name]), tuple(each_figure(row, samples[name])))
        for name, why in whys.items()
    }
