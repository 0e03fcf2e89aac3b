"""Find the fault: an answer names a line and a kind, and repairs it. What is true comes from check mode."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from tiny_vllm.course.chapter import Chapter
from tiny_vllm.course.checking import check_exercise
from tiny_vllm.course.failure import Failure, Outcome
from tiny_vllm.course.files import read_source, write_atomic
from tiny_vllm.errors import UserError
from tiny_vllm.sandbox.runs import Found, Limits

KINDS = (
    *("race", "barrier", "out of bounds", "uninitialised", "lanes", "misaligned"),
    *("null pointer", "division by zero", "endless loop"),
)
WEIGHTS = {"line": 30, "kind": 20, "repair": 50}
_OTHER_LINE = re.compile(r"\(line (\d+)\)")


def check_answer(
    chapter: Chapter,
    id: str,
    line: int,
    kind: str,
    repair: str,
    repair_after: bool = False,
    *,
    tree: Path | None = None,
    limits: Limits | None = None,
) -> Outcome:
    """Whether the line and the kind are those that check mode reports, and the repaired copy is right and clean.

    repair: what stands in the place of the line, or behind it with repair_after. The outcome's groups are WEIGHTS'. A
    race lies between two accesses: either line counts, and any between them.
    """
    check = partial(check_exercise, chapter, id, whole=True, tree=tree, limits=limits)
    shown = check(chapter.folder.parent)
    if not shown.findings:
        raise UserError(f"{chapter.exercise(id).file} shows no finding in check mode; tell the course's authors")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "repaired"
        lost = _repair(chapter, id, line, repair, repair_after, work)
        repaired = check(work)
    groups = {
        "line": any(line in _lines(found) for found in shown.findings),
        "kind": kind.strip().lower() in {found.kind for found in shown.findings},
        "repair": repaired.passed,
    }
    share = sum(WEIGHTS[part] for part, right in groups.items() if right) / sum(WEIGHTS.values())
    failure = repaired.first_failure
    if not groups["line"] or not groups["kind"]:
        failure = _wrong_answer(groups, line, kind)
    elif failure and lost:
        said = f"your text took the place of `{lost}`; keep that statement in it, or use --after (repair_after=True)"
        failure = replace(failure, error=said)
    score = round(repaired.max * share, 2)
    return replace(repaired, passed=share == 1, score=score, groups=groups, first_failure=failure)


def _repair(chapter: Chapter, id: str, line: int, repair: str, after: bool, work: Path) -> str:
    """Write the repaired copy; returns the statement that the repair took the place of, "" where it keeps it."""
    file = chapter.exercise(id).file
    lines = read_source(chapter.folder / file).splitlines()
    if not 1 <= line <= len(lines):
        raise UserError(f"line is {line}; {file} has the lines 1 to {len(lines)}")
    put = repair.replace("\r\n", "\n").split("\n")
    old = lines[line - 1].strip()
    lines[line - 1 : line] = [lines[line - 1], *put] if after else put
    write_atomic(work / chapter.name / file, "\n".join(lines) + "\n")
    return "" if after or "".join(old.split()) in "".join(repair.split()) else old


def _lines(found: Found) -> range:
    """The lines that a finding is about: its own and, for a race, all up to the other access."""
    both = [found.line, *map(int, _OTHER_LINE.findall(found.text))]
    return range(min(both), max(both) + 1)


def _wrong_answer(groups: Mapping[str, bool], line: int, kind: str) -> Failure:
    wrong, given = ("kind", repr(kind)) if groups["line"] else ("line", f"line {line}")
    known = f" (the kinds are {', '.join(KINDS)})" if wrong == "kind" else ""
    repair = "right" if groups["repair"] else "wrong too"
    error = f"{given} is not the {wrong} that check mode reports{known}; the repair is {repair}"
    return Failure(wrong, "your answer", error=error)
