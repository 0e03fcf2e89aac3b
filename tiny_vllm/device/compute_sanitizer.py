"""NVIDIA's compute-sanitizer on a script, and its findings in the words of the emulator's check mode.

It ships with the CUDA toolkit (package cuda-sanitizer). Its four tools look for accesses outside memory, races on
shared memory, barriers that threads miss, and reads of memory that nothing wrote; each is a run of its own.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tiny_vllm.device.emulator.check.findings import Finding, Index3
from tiny_vllm.errors import DeviceError

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
PADDING = 4096  # bytes that belong to nobody behind each allocation: neighbours would take what runs over the end
_PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/opt/cuda/bin/compute-sanitizer")

_PREFIX = re.compile(r"^=========\s?")
_LINE = re.compile(r"\bin (?P<file>\S+?):(?P<line>\d+)(?::(?P<function>[^\[]+))?")
_FUNCTION = re.compile(r"(?:\bat |Device Frame:)(?:void )?(?P<function>[\w:~]+)[<(+]")
_WHO = re.compile(r"by thread \((\d+),(\d+),(\d+)\) in block \((\d+),(\d+),(\d+)\)")
_ACCESS = re.compile(r"^Invalid (?:__(?P<space>\w+)__ )?(?P<verb>read|write|atomic) of size (?P<size>\d+)")
_UNWRITTEN = re.compile(r"^Uninitialized (?:__(?P<space>\w+)__ )?(?:memory )?read of size (?P<size>\d+)")
_RACE = re.compile(r"Race reported between (?P<verb>Read|Write|Atomic) access")
_OTHER = re.compile(r"^\s*and (?P<verb>Read|Write|Atomic) access")
_HAZARDS = re.compile(r"\[(\d+) hazards?\]")
_BARRIER = re.compile(r"^Barrier error detected\. (?P<what>.*)$")
_VERBS = {"read": "reads", "write": "writes", "atomic": "changes, atomically,"}


@dataclass
class _Report:
    """One report: its first line, and those under it."""

    head: str
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join([self.head, *self.lines])


def find_sanitizer() -> str:
    """The program. Raises DeviceError when there is none."""
    found = shutil.which("compute-sanitizer") or next((place for place in _PLACES if Path(place).is_file()), None)
    if found is None:
        raise DeviceError(
            "compute-sanitizer is not on the PATH; it is a part of the CUDA toolkit (package cuda-sanitizer). Or check "
            "on the emulator: --device emulator"
        )
    return found


def command(sanitizer: str, tool: str, log: Path, program: Sequence[str]) -> list[str]:
    """The command line that runs a program under a tool, with the tool's words in a file of their own."""
    padding = ("--padding", str(PADDING)) if tool == "memcheck" else ()
    return [sanitizer, "--tool", tool, "--log-file", str(log), "--show-backtrace", "device", *padding, *program]


def parse(text: str) -> list[Finding]:
    """The findings in a tool's output, one of each kind and line, with a count."""
    found: dict[tuple[str, str, int], Finding] = {}
    for report in _reports(text):
        finding = _finding(report)
        if finding is None:
            continue
        key = (finding.kind, finding.file, finding.line)
        before = found.get(key)
        found[key] = finding if before is None else replace(before, count=before.count + finding.count)
    return list(found.values())


def _reports(text: str) -> Iterator[_Report]:
    """A report begins with one blank behind the bar of equals signs; what belongs to it has more."""
    report: _Report | None = None
    for line in text.splitlines():
        if not line.startswith("========="):
            continue
        body = _PREFIX.sub("", line)
        if body.startswith(" ") and report is not None:
            report.lines.append(body.strip())
        else:
            if report is not None:
                yield report
            report = _Report(body.strip())
    if report is not None:
        yield report


def _finding(report: _Report) -> Finding | None:
    if match := _ACCESS.match(report.head):
        return _access(report, match)
    if match := _UNWRITTEN.match(report.head):
        sentence = (
            f"{_who(report)} reads {_memory(match['space'])} which nothing has written; fill it first, or start from "
            "device.zeros"
        )
        return _named(report, "uninitialised", sentence)
    if _RACE.search(report.head):
        return _race(report)
    if match := _BARRIER.match(report.head):
        return _named(report, "barrier", _barrier(report, match["what"].rstrip(".")))
    return None


def _access(report: _Report, match: re.Match[str]) -> Finding:
    verb, size, text = _VERBS[match["verb"]], match["size"], report.text
    if "misaligned" in text:
        sentence = (
            f"{_who(report)} touches {size} bytes at once at an address that is no multiple of {size}; start at such a "
            "multiple, or read element by element"
        )
        return _named(report, "misaligned", sentence)
    near = re.search(r"is ([\d,]+) bytes (after|before) the nearest allocation at \S+ of size ([\d,]+) bytes", text)
    where = f", {near[1]} bytes {near[2]} the nearest array ({near[3]} bytes)" if near else ""
    sentence = (
        f"{_who(report)} {verb} {_memory(match['space'])} outside its array{where}; correct the index, or let threads "
        "without an element do nothing"
    )
    return _named(report, "out of bounds", sentence)


def _race(report: _Report) -> Finding:
    first = _RACE.search(report.head)
    others = [line for line in report.lines if _OTHER.match(line)]
    assert first is not None
    verbs = [_OTHER.match(line)["verb"].lower() for line in others]  # type: ignore[index]
    place = _LINE.search(others[0]) if others else None
    does = {"read": "reads", "write": "writes", "atomic": "changes, atomically,"}
    other = does[verbs[0]] if verbs else "touches"
    at = f" in line {place['line']}" if place else ""
    sentence = (
        f"a thread {does[first['verb'].lower()]} here what another {other}{at}, and nothing orders the two; put a "
        "barrier between the two"
    )
    count = sum(int(number) for number in _HAZARDS.findall(report.text)) or 1
    finding = _named(report, "race", sentence)
    return replace(finding, count=count, other_line=int(place["line"]) if place else None)


def _barrier(report: _Report, what: str) -> str:
    if "Divergent" in what:
        group = "warp" if "warp" in what else "block"
        return (
            f"{_who(report)} waits at this barrier, and other threads of its {group} do not come to it; take it out of "
            "the if, or out of the loop that some leave early"
        )
    return f"{_who(report)}: {what}; every thread of the block must come to the same barrier"


def _named(report: _Report, kind: str, sentence: str) -> Finding:
    lines = [report.head, *report.lines]
    places = [match for line in lines if (match := _LINE.search(line))]
    where = places[0] if places else None
    outer = tuple(f"{p['file']}:{p['line']}" for p in places[1:] if kind != "race")
    who = _WHO.search(report.text)
    thread, block = _indices(who)
    return Finding(
        kind=kind,
        message=sentence,
        kernel=_kernel(report.text),
        file=where["file"] if where else "?",
        line=int(where["line"]) if where else 0,
        block=block,
        thread=thread,
        called_from=outer,
    )


def _kernel(text: str) -> str:
    """The outermost function that the report names."""
    names = [match["function"] for line in text.splitlines() if (match := _FUNCTION.search(line))]
    names += [match["function"].partition("(")[0] for match in _LINE.finditer(text) if match["function"]]
    return names[-1].strip() if names else "?"


def _indices(who: re.Match[str] | None) -> tuple[Index3, Index3]:
    if who is None:
        return (0, 0, 0), (0, 0, 0)
    x, y, z, bx, by, bz = map(int, who.groups())
    return (x, y, z), (bx, by, bz)


def _who(report: _Report) -> str:
    thread, block = _indices(_WHO.search(report.text))
    return f"thread {_short(thread)} of block {_short(block)}"


def _short(index: Index3) -> str:
    return str(index[0]) if index[1:] == (0, 0) else str(index)


def _memory(space: str | None) -> str:
    return f"{space} memory" if space else "memory"
