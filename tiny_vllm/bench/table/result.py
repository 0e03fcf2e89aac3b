"""What a run of the table found: plain data, from which JSON, Markdown and the picture are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tiny_vllm.bench.table.ceilings import Ceilings
from tiny_vllm.bench.table.contenders import OURS
from tiny_vllm.bench.table.floors import Work
from tiny_vllm.bench.table.known import Known
from tiny_vllm.bench.table.rows import TableRow
from tiny_vllm.bench.table.verdict import Verdict, judge, ratio

SCHEMA = 1


@dataclass(frozen=True)
class Cell:
    """A contender's figure in a row, in the row's unit, with the figure of every sample; or why there is none."""

    value: float | None = None
    samples: tuple[float, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class RowResult:
    """A row, what it is held against, and a cell for every contender."""

    row: TableRow
    known: Known
    floor: float | None
    work: Work | None
    cells: dict[str, Cell]

    @property
    def ours(self) -> float | None:
        return self.cells[OURS].value if OURS in self.cells else None

    @property
    def verdict(self) -> Verdict:
        vllm = self.cells["vllm"].value if "vllm" in self.cells else None
        return judge(self.ours, vllm, self.known.vllm_best, self.known.target, self.row.higher_is_better)

    @property
    def floor_share(self) -> float | None:
        """1 where ours is as quick as the floor."""
        return ratio(self.ours, self.floor, self.row.higher_is_better)

    def ratio(self, name: str) -> float | None:
        """How many times as fast as that contender ours is."""
        return ratio(self.ours, self.cells[name].value, self.row.higher_is_better)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        row, verdict = self.row, self.verdict
        return {
            "row": row.name,
            "title": row.title,
            "unit": row.unit,
            "higher_is_better": row.higher_is_better,
            "floor": self.floor,
            "floor_share": self.floor_share,
            "target": self.known.target,
            "target_met": None if self.known.target is None else verdict.target == "met",
            "vllm_best": self.known.vllm_best,
            "verdict": verdict.verdict,
            "flops": self.work and self.work.flops,
            "bytes": self.work and self.work.num_bytes,
            "contenders": {
                name: {"value": each.value, "samples": list(each.samples), "ratio": self.ratio(name), "why": each.why}
                for name, each in self.cells.items()
            },
        }


@dataclass
class Table:
    """A whole run. versions: {contender: {package: version}}; first_starts: seconds, of processes that were measured
    later. Grows a row at a time.
    """

    model: str
    card: str
    dtype: str
    repeats: int
    ceilings: Ceilings
    contenders: tuple[str, ...]
    rows: list[RowResult] = field(default_factory=list)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    first_starts: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def all_pass(self) -> bool:
        """No row failed."""
        return all(each.verdict.verdict != "FAIL" for each in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "card": self.card,
            "dtype": self.dtype,
            "repeats": self.repeats,
            "ceilings": self.ceilings.as_dict(),
            "versions": self.versions,
            "first_starts": self.first_starts,
            "notes": self.notes,
            "rows": [each.as_dict() for each in self.rows],
        }
