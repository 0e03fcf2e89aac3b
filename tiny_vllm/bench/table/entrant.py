"""A contender in one run of the table: its process, started when it is needed, and why it takes no part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tiny_vllm.bench.table.contenders import CONTENDERS, missing
from tiny_vllm.bench.table.contenders.base import Setup
from tiny_vllm.bench.table.measure import Sample
from tiny_vllm.bench.table.process import ContenderError, ContenderProcess
from tiny_vllm.bench.table.rows import TableRow

Say = Callable[[str], None]


class Entrant:
    """first_start: seconds to the first token of its first process in this run; versions: of its packages."""

    def __init__(self, name: str, setup: Setup, logs: Path, seconds: float, say: Say) -> None:
        """logs: a folder; seconds: that one answer may take; say: told what happens."""
        self.name, self.kind = name, CONTENDERS[name]
        self._setup, self._logs, self._seconds, self._say = setup, logs, seconds, say
        self._process: ContenderProcess | None = None
        self._why = missing(name) or ""
        self.first_start: float | None = None
        self.versions: dict[str, str] = {}

    def refuses(self, row: TableRow) -> str:
        """Why it takes no part in a row; empty where it does."""
        return self._why or ("" if row.kind in self.kind.kinds else "not measured")

    def enter(self) -> None:
        """Start the process that the rows are measured in. One that cannot start is out of the whole run."""
        try:
            self._process = self._start("run")
            self._process.ask({"get_ready": True})
        except ContenderError as error:
            self.leave()
            self._why = f"failed: {error}"
            self._say(f"{self.name} {self._why}")

    def leave(self) -> None:
        """End that process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def warm_up(self, row: TableRow) -> None:
        """What comes before a row's first sample."""
        self._ask({"warm_up": asdict(row)})

    def sample(self, row: TableRow, turn: int) -> Sample | None:
        """Measure once; None where a slow contender has done enough of this row."""
        if turn and self.kind.is_slow and row.kind == "nano-vllm":
            return None
        return Sample(**self._ask({"sample": asdict(row), "seed": turn})["sample"])

    def start_seconds(self, turn: int, environment: dict[str, str] | None = None) -> float:
        """From the start of a fresh process to its first token. ContenderError where it fails."""
        with self._start(f"start{turn}", environment) as process:
            return process.start_seconds

    def _start(self, log: str, environment: dict[str, str] | None = None) -> ContenderProcess:
        file = self._logs / f"{self.name}-{log}.log"
        process = ContenderProcess(self.name, asdict(self._setup), file, self._seconds, environment)
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in process.ready["phases"].items())
        self._say(f"{self.name}: first token after {process.start_seconds:.2f} s ({phases})")
        if self.first_start is None:
            self.first_start, self.versions = process.start_seconds, process.ready["versions"]
        return process

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Starts the process anew where it ended in a row before."""
        if self._process is None:
            self.enter()
        if self._process is None:
            raise ContenderError(self._why.removeprefix("failed: "), is_dead=True)
        try:
            return self._process.ask(message)
        except ContenderError as error:
            if error.is_dead:
                self.leave()
            raise
