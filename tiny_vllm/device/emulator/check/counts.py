"""Counters of a launch, line by line: what each load and store asks of the memory."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiny_vllm.device.emulator.check.symbols import Line, Lines

SECTOR, BANKS, LANES = 32, 32, 32
GLOBAL_LOAD, GLOBAL_STORE, SHARED_LOAD, SHARED_STORE, INSTRUCTIONS = range(5)
NAMES = ("global load", "global store", "shared load", "shared store", "instructions")
_COUNT = struct.Struct("@QiI6QII32Q")  # struct Count of cpp/check/counters.h


@dataclass(frozen=True)
class Count:
    """What one line asks, all its requests together; a request is one instruction of one warp.

    kind: one of NAMES. lanes: that took part, summed over the requests. sectors: of 32 bytes that a global request
    touches, and ideal: the fewest that its bytes fit in, both summed. ways: how many turns the banks of shared memory
    need, summed over phases (a phase is what goes at once: 32 lanes of 4 bytes, 16 of 8, 8 of 16). example: the
    addresses of the first request, by lane, in bytes; None for a lane that took no part.
    """

    file: str
    line: int
    kind: str
    requests: int
    lanes: int
    sectors: int
    ideal: int
    ways: int
    phases: int
    size: int
    example: tuple[int | None, ...]

    @property
    def active_lanes(self) -> float:
        """Of 32, on average."""
        return self.lanes / self.requests

    @property
    def sectors_a_request(self) -> float:
        return self.sectors / self.requests

    @property
    def ideal_sectors(self) -> float:
        return self.ideal / self.requests

    @property
    def bank_ways(self) -> float:
        """1: no conflict."""
        return self.ways / self.phases if self.phases else 0.0

    def __str__(self) -> str:
        head = f"{self.file}:{self.line}"
        text = f"{head:32s} {self.kind:13s} {self.requests:9d} x  active lanes {self.active_lanes:4.1f} of {LANES}"
        if self.kind.startswith("global"):
            text += f"   sectors a request {self.sectors_a_request:4.1f} (at best {self.ideal_sectors:.1f})"
        elif self.kind.startswith("shared"):
            text += f"   bank ways {self.bank_ways:4.1f} (at best 1.0)"
        return text


@dataclass(frozen=True)
class Report:
    """The counters of one launch, in the order of the lines."""

    kernel: str
    counts: tuple[Count, ...]

    def of(self, kind: str, line: int | None = None) -> list[Count]:
        """Those of a kind ("global load"), of one line or of all."""
        return [each for each in self.counts if each.kind == kind and line in (None, each.line)]

    def __str__(self) -> str:
        return "\n".join([f"{self.kernel}: what its lines ask of the memory", *map(str, self.counts)])


def read_report(kernel: str, library: Any, lines: Lines, arena: int) -> Report:
    """The counters of the last launch. arena: where its arrays begin; example addresses count from there."""
    start = ctypes.c_void_p()
    count = library.check_counts(ctypes.byref(start))
    data = ctypes.string_at(start.value or 0, count * _COUNT.size) if count else b""
    raw = [fields for fields in _COUNT.iter_unpack(data) if fields[3]]
    lines.look_up(fields[0] for fields in raw)
    groups: dict[tuple[Line, int], list[Sequence[Any]]] = {}
    for fields in raw:
        if line := next(iter(lines.of(fields[:1])), None):
            groups.setdefault((line, fields[1]), []).append(fields)
    counts = [_count(line, kind, group, arena) for (line, kind), group in groups.items()]
    return Report(kernel, tuple(sorted(counts, key=lambda c: (c.file, c.line, NAMES.index(c.kind)))))


def _count(line: Line, kind: int, group: list[Sequence[Any]], arena: int) -> Count:
    sums = [sum(fields[i] for fields in group) for i in range(3, 9)]
    worst = max(group, key=lambda fields: (fields[5] + fields[7]) / fields[3])
    base = arena if kind in (GLOBAL_LOAD, GLOBAL_STORE) else 0
    example = tuple(worst[11 + lane] - base if worst[9] >> lane & 1 else None for lane in range(LANES))
    requests, lanes, sectors, ideal, ways, phases = sums
    where = (line.file, line.number, NAMES[kind])
    return Count(*where, requests, lanes, sectors, ideal, ways, phases, worst[2], example)
