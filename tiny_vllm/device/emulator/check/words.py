"""A finding in words that a student of the second year understands, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tiny_vllm.device.emulator.check.findings import Code, Finding, Record, called_from, in_launch
from tiny_vllm.device.emulator.check.symbols import DEVICE, Variable
from tiny_vllm.device.emulator.limits import Shape

_KINDS = {
    Code.OUT_OF_BOUNDS: "out of bounds",
    Code.ARRAY_INDEX: "out of bounds",
    Code.RACE: "race",
    Code.RETURNED_BEFORE_BARRIER: "barrier",
    Code.DIFFERENT_BARRIERS: "barrier",
    Code.STUCK_AT_BARRIER: "barrier",
    Code.UNWRITTEN: "uninitialised",
    Code.IN_FLIGHT: "uninitialised",
    Code.LANE_RETURNED: "lanes",
    Code.LANE_NOT_IN_MASK: "lanes",
    Code.CALLER_NOT_IN_MASK: "lanes",
    Code.LANES_NEVER_COME: "lanes",
    Code.MISALIGNED: "misaligned",
    Code.NULL_POINTER: "null pointer",
    Code.DIVISION_BY_ZERO: "division by zero",
    Code.ENDLESS: "endless loop",
}


@dataclass(frozen=True)
class Place:
    """The element that an access meets: "x[7]", of an array with so many elements."""

    name: str  # "x", "shared 'partial'"
    index: int | None
    elements: int | None

    def __str__(self) -> str:
        if self.index is None:
            return self.name
        inside = f"[{self.index}]"
        return f"{self.name[:-1]}{inside}'" if self.name.endswith("'") else self.name + inside

    @property
    def bare_name(self) -> str:
        return self.name.split("'")[1] if "'" in self.name else self.name


class Words:
    """Puts the records of one launch in words."""

    def __init__(
        self,
        kernel: str,
        shape: Shape,
        names: Sequence[str],
        args: Sequence[object],
        variables: Sequence[Variable],
        dynamic_name: str,
    ) -> None:
        """names: of the arguments; dynamic_name: what the text calls its dynamic shared memory."""
        self._kernel, self._shape = kernel, shape
        self._names, self._args = names, args
        self._variables, self._dynamic_name = variables, dynamic_name

    def finding(self, record: Record, sentence: Sentence) -> Finding:
        """The record as a finding; `sentence` says what happened there."""
        place = self._place(record)
        line = record.lines[0] if record.lines else None
        other = record.other_thread
        return Finding(
            kind=_KINDS[record.code],
            message=sentence(self, record, place),
            kernel=self._kernel,
            file=line.file if line else "?",
            line=line.number if line else 0,
            block=in_launch(record.block, self._shape.grid),
            thread=in_launch(record.thread, self._shape.block),
            argument=place.bare_name,
            index=place.index,
            count=record.count,
            other_thread=None if other is None else in_launch(other, self._shape.block),
            other_line=record.other_line.number if record.other_line else None,
            called_from=tuple(called_from(record)),
        )

    # ---- who and where

    def thread(self, number: int, block: int | None = None) -> str:
        x, y, z = in_launch(number, self._shape.block)
        name = f"thread {x}" if self._shape.block[1:] == (1, 1) else f"thread ({x}, {y}, {z})"
        return name if block is None or self._shape.num_blocks == 1 else f"{name} of {self.block(block)}"

    def block(self, number: int) -> str:
        x, y, z = in_launch(number, self._shape.grid)
        return f"block {x}" if self._shape.grid[1:] == (1, 1) else f"block ({x}, {y}, {z})"

    def who(self, record: Record) -> str:
        return self.thread(record.thread, record.block)

    def other(self, record: Record) -> str:
        if record.other_thread is None:
            return "another thread"
        return self.thread(record.other_thread, record.other_block if record.other_block != record.block else None)

    def _place(self, record: Record) -> Place:
        if record.code == Code.ARRAY_INDEX:
            return Place("an array", record.offset, None)
        if record.argument >= 0:
            array = self._args[record.argument]
            assert isinstance(array, np.ndarray)
            return Place(self._names[record.argument], record.offset // array.itemsize, array.size)
        if 0 <= record.variable < len(self._variables):
            return self._variable_place(record, self._variables[record.variable])
        return Place("memory that belongs to no argument", None, None)

    def _variable_place(self, record: Record, variable: Variable) -> Place:
        size = record.size or 1
        if variable.name == "dynamic shared memory":
            return Place(f"shared '{self._dynamic_name}'", record.offset // size, self._shape.shared_mem // size)
        kind = "device variable" if variable.kind == DEVICE else "shared"
        if variable.size <= size:
            return Place(f"{kind} '{variable.name}'", None, 1)
        return Place(f"{kind} '{variable.name}'", record.offset // size, variable.size // size)

    def view_note(self, record: Record) -> str:
        """Where in a two-dimensional array a flat index lies, or what it missed."""
        if record.argument < 0:
            return ""
        array = self._args[record.argument]
        assert isinstance(array, np.ndarray)
        if array.ndim < 2 or array.size == 0 or record.offset < 0:
            return ""
        row, rest = divmod(record.offset, array.strides[0])
        if array.flags.c_contiguous:
            return f" (its shape is {array.shape})"
        return f" (column {rest // array.itemsize} of row {row}; its shape is {array.shape})"


Sentence = Callable[[Words, Record, Place], str]
