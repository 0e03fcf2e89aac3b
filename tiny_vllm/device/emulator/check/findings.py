"""What check mode found: from the records of cpp/check/findings.h to findings that name a line and an element."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from tiny_vllm.device.emulator.check.symbols import Line, Lines

_RECORD = struct.Struct("@iiiIqiiIIQQIIQ8QQ64s")
_NOBODY, _WITHDRAWN = 2**32 - 1, -1

Index3 = tuple[int, int, int]


class Code(IntEnum):
    """enum Kind of cpp/check/findings.h, and what only Python finds."""

    OUT_OF_BOUNDS = 0
    ARRAY_INDEX = 1
    RACE = 2
    RETURNED_BEFORE_BARRIER = 3
    DIFFERENT_BARRIERS = 4
    UNWRITTEN = 5
    IN_FLIGHT = 6
    LANE_RETURNED = 7
    LANE_NOT_IN_MASK = 8
    CALLER_NOT_IN_MASK = 9
    LANES_NEVER_COME = 10
    STUCK_AT_BARRIER = 11
    MISALIGNED = 12
    NULL_POINTER = 13
    DIVISION_BY_ZERO = 14
    ENDLESS = 15


@dataclass(frozen=True)
class Finding:
    """One fault of a kernel.

    kind: "out of bounds", "race", "barrier", "uninitialised", "lanes", "misaligned", "null pointer", "division by zero"
    or "endless loop". file and line: the reader's ("?" and 0 where they are not known); called_from: the lines that the
    device function was called from, innermost first. argument: the argument's or shared array's name; index: of the
    element. block and thread: the first that did it, (x, y, z); count: how many did.
    """

    kind: str
    message: str
    kernel: str
    file: str = "?"
    line: int = 0
    block: Index3 = (0, 0, 0)
    thread: Index3 = (0, 0, 0)
    argument: str = ""
    index: int | None = None
    count: int = 1
    other_thread: Index3 | None = None
    other_line: int | None = None
    called_from: tuple[str, ...] = ()

    def __str__(self) -> str:
        outer = f" (called from {', '.join(self.called_from)})" if self.called_from else ""
        times = f" [{self.count} times]" if self.count > 1 else ""
        return f"{self.file}:{self.line}: {self.kind}: {self.message}{outer}{times}"


@dataclass(frozen=True)
class Record:
    """A finding as the runtime tells it; lines: innermost first."""

    code: Code
    argument: int = -1
    variable: int = -1
    size: int = 0
    offset: int = 0
    writes: bool = False
    other_writes: bool = False
    thread: int = 0
    other_thread: int | None = None
    block: int = 0
    other_block: int = 0
    mask: int = 0
    atomics: int = 0
    count: int = 1
    text: str = ""
    lines: tuple[Line, ...] = ()
    other_line: Line | None = None


def read_records(library: Any, lines: Lines) -> list[Record]:
    """The findings of the last launch, with their lines; those that are no fault after all left out."""
    start = ctypes.c_void_p()
    count = library.check_findings(ctypes.byref(start))
    data = ctypes.string_at(start.value or 0, count * _RECORD.size) if count else b""
    raw = [fields for fields in _RECORD.iter_unpack(data) if fields[0] != _WITHDRAWN]
    lines.look_up(counter for fields in raw for counter in fields[14:23])
    found = [_record(fields, lines) for fields in raw]
    kept = _without_doubles([record for record in found if not _is_same_barrier(record)])
    return [record for record in kept if not _follows(record, kept)]


def _record(fields: Sequence[Any], lines: Lines) -> Record:
    code, argument, variable, size, offset, writes, other_writes, thread, other_thread = fields[:9]
    block, other_block, mask, atomics, count = fields[9:14]
    other = lines.of(fields[22:23])
    return Record(
        Code(code),
        argument,
        variable,
        size,
        offset,
        bool(writes),
        bool(other_writes),
        thread,
        None if other_thread == _NOBODY else other_thread,
        block,
        other_block,
        mask,
        atomics,
        count,
        fields[23].partition(b"\0")[0].decode(errors="replace"),
        tuple(lines.of(fields[14:22])),
        other[0] if other else None,
    )


def _is_same_barrier(record: Record) -> bool:
    """The compiler made two of one __syncthreads: no fault."""
    same_line = bool(record.lines) and record.lines[0] == record.other_line
    return record.code == Code.DIFFERENT_BARRIERS and same_line


def _follows(record: Record, records: Sequence[Record]) -> bool:
    """A fault that another one brought about: who passed the wrong barrier is missing at the next."""
    if record.code == Code.RETURNED_BEFORE_BARRIER:
        return any(each.code == Code.DIFFERENT_BARRIERS for each in records)
    masks = (Code.LANE_RETURNED, Code.LANE_NOT_IN_MASK, Code.CALLER_NOT_IN_MASK)
    same_line = [each for each in records if each.lines[:1] == record.lines[:1]]
    return record.code == Code.LANES_NEVER_COME and any(each.code in masks for each in same_line)


def _without_doubles(records: Sequence[Record]) -> list[Record]:
    """One of each kind and line, the one that names its place; the counts added up where they count other accesses."""
    kept: dict[Any, Record] = {}
    for record in records:
        key = _key(record)
        if (before := kept.get(key)) is None:
            kept[key] = record
            continue
        same_access = record.code != before.code or record.text != before.text
        count = max(record.count, before.count) if same_access else record.count + before.count
        named = before if before.argument >= 0 or before.variable >= 0 else record
        kept[key] = replace(named, count=count)
    return list(kept.values())


def _key(record: Record) -> tuple[Any, ...]:
    code = Code.OUT_OF_BOUNDS if record.code == Code.ARRAY_INDEX else record.code
    return code, record.lines[:1] or record.text


def in_launch(number: int, sizes: Index3) -> Index3:
    """A thread's (x, y, z) in its block, or a block's in the grid, from its number."""
    return number % sizes[0], number // sizes[0] % sizes[1], number // (sizes[0] * sizes[1])


def called_from(record: Record) -> Iterator[str]:
    """The reader's lines around the innermost, from the call outwards."""
    for inner, outer in zip(record.lines, record.lines[1:]):
        if inner != outer:
            yield str(outer)
