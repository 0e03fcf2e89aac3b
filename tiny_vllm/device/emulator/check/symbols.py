"""What the symbols of a checked library tell: its shared variables, and the reader's line of a program counter."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

SHARED, GAP, DYNAMIC, DEVICE = range(4)  # VariableKind of cpp/check/state.h
DYNAMIC_GAP = 4096  # kDynamicGap of cpp/launch.h

_SYMBOL = re.compile(r"^([0-9a-f]+) ([0-9a-f]+) ([bBdDuVW]) (.+?)(?: \[.*\])?$", re.MULTILINE)
_END = re.compile(r"^([0-9a-f]+) \w __(start|stop)_emu_shared$", re.MULTILINE)
_MACHINE = re.compile(r"^(emulator|check|std|__|_|completed|threadIdx$|blockIdx$|blockDim$|gridDim$)|vtable|typeinfo")


@dataclass(frozen=True)
class Variable:
    """A static variable of the kernel's text; begin: bytes from the module's start."""

    name: str
    begin: int
    size: int
    kind: int


@dataclass(frozen=True)
class Line:
    """A line of the reader's text."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@lru_cache(maxsize=256)
def variables(library: Path) -> tuple[Variable, ...]:
    """The shared and device variables, and the gaps between shared ones, in the order of their addresses."""
    text = _run(["nm", "-SC", str(library)])
    ends = {which: int(at, 16) for at, which in _END.findall(text)}
    found: dict[int, Variable] = {}
    for at, size, _, name in _SYMBOL.findall(text):
        begin, length = int(at, 16), int(size, 16)
        if name == "emulator::dynamic_space":
            found |= {each.begin: each for each in _dynamic(begin, length)}
        elif (kind := _kind(name, begin, ends)) is not None:
            found[begin] = Variable(name.rpartition("::")[2], begin, length, kind)
    return tuple(found[begin] for begin in sorted(found))


def _kind(name: str, begin: int, ends: dict[str, int]) -> int | None:
    if "emulator_gap_" in name:
        return GAP
    if ends and ends["start"] <= begin < ends["stop"]:
        return SHARED
    if _MACHINE.match(name):
        return None
    # g++ 12 leaves shared arrays of templates outside the section; a kernel has no other static variables inside.
    return SHARED if re.search(r"[)>\w]::\w+$", name) else DEVICE


def _dynamic(begin: int, length: int) -> list[Variable]:
    end = begin + length
    return [
        Variable("gap", begin, DYNAMIC_GAP, GAP),
        Variable("dynamic shared memory", begin + DYNAMIC_GAP, length - 2 * DYNAMIC_GAP, DYNAMIC),
        Variable("gap", end - DYNAMIC_GAP, DYNAMIC_GAP, GAP),
    ]


class Lines:
    """Finds the reader's lines of program counters."""

    def __init__(self, library: Path, files: Iterable[str]) -> None:
        """files: the names that the text's #line directives give."""
        self._library, self._files = library, sorted(files, key=len, reverse=True)
        self._known: dict[int, list[Line]] = {}

    def look_up(self, counters: Iterable[int]) -> None:
        """Find all of them in one go."""
        new = sorted({each for each in counters if each and each not in self._known})
        if not new:
            return
        # A call's return address belongs to what follows it: one byte back is the call.
        command = ["addr2line", "-a", "-i", "-e", str(self._library), *(hex(each - 1) for each in new)]
        parts = re.split(r"^0x[0-9a-f]+\n", _run(command), flags=re.MULTILINE)[1:]
        for counter, part in zip(new, parts):
            self._known[counter] = [line for text in part.splitlines() if (line := self._reader_line(text))]

    def of(self, counters: Iterable[int]) -> list[Line]:
        """The reader's lines behind program counters, innermost first, from the access out to the kernel."""
        counters = list(counters)
        self.look_up(counters)
        return [line for counter in counters for line in self._known.get(counter, [])]

    def _reader_line(self, text: str) -> Line | None:
        path, _, number = text.split(" (")[0].rpartition(":")
        if not number.isdecimal():
            return None
        file = next((file for file in self._files if path == file or path.endswith("/" + file)), None)
        return Line(file, int(number)) if file else None


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, errors="replace").stdout
