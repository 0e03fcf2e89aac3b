"""Wrong answers that people write (chapters/*/mutants): each is near the worked file, and its named group catches it.

    // chapters/ch03_rms_norm/mutants/no_eps.cu: wrong because: forgets eps | caught by: numbers/5x576 embedding |
    // looks right on: every normal draw | exercise: 3.3

`caught by: clean` names check mode. The header may run over several comment lines.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tiny_vllm.course.chapter import Chapter, chapters
from tiny_vllm.course.checking import check_exercise, task_of
from tiny_vllm.course.failure import report

MUTANTS = [
    (chapter, path)
    for chapter in chapters()
    for path in sorted((chapter.folder / "mutants").glob("*"))
    if path.suffix in (".cu", ".py")
]
HEADER = re.compile(
    r"wrong because: (?P<why>[^|]+) \| caught by: (?P<group>\w+)(?P<case>/[^|]+)? \|"
    r" looks right on: (?P<right>[^|]+) \| exercise: (?P<exercise>\d+\.\d+)"
)
MOST_LINES = 3  # that a mutant has changed, added or left out


class Header(NamedTuple):
    lines: int
    group: str
    exercise: str


def read_header(path: Path) -> Header:
    """The header's fields, and how many lines it takes."""
    words = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words += " " + line.lstrip("/# ").strip()
        if match := HEADER.search(words):
            return Header(number, match["group"], match["exercise"])
        if not line.startswith(("//", "#")):
            break
    raise AssertionError(f"{path.name} has no header: wrong because: ... | caught by: ... | looks right on: ... | ...")


def of_mutants(mutants):
    return pytest.mark.parametrize("chapter, path", mutants, ids=[f"{c.number}-{p.stem}" for c, p in mutants])


@of_mutants(MUTANTS)
def test_it_is_near_the_worked_file(chapter: Chapter, path: Path):
    header = read_header(path)
    assert header.group == "clean" or header.group in {case.group for case in task_of(chapter, header.exercise).cases}
    worked = (chapter.folder / chapter.exercise(header.exercise).file).read_text("utf-8").splitlines()[1:]
    mutant = path.read_text("utf-8").splitlines()[header.lines :]
    blocks = difflib.SequenceMatcher(None, worked, mutant, autojunk=False).get_opcodes()
    changed = sum(max(b - a, d - c) for tag, a, b, c, d in blocks if tag != "equal")
    assert 1 <= changed <= MOST_LINES, "\n".join(difflib.unified_diff(worked, mutant, lineterm="", n=0))


def verdict(chapter: Chapter, path: Path, folder: Path, order: str, device: str):
    header = read_header(path)
    target = folder / order / chapter.name / chapter.exercise(header.exercise).file
    target.parent.mkdir(parents=True)
    target.write_bytes(path.read_bytes())
    outcome = check_exercise(chapter, header.exercise, folder / order, device=device, orders=(order,), whole=True)
    return outcome, bool(outcome.findings) if header.group == "clean" else not outcome.groups[header.group]


@pytest.mark.deep
@of_mutants(MUTANTS)
def test_its_group_catches_it_in_either_order(chapter: Chapter, path: Path, tmp_path, request):
    device = request.config.getoption("--device")
    if device == "cuda" and read_header(path).group == "clean":
        pytest.skip("check mode is the emulator's")
    for order in ("forward", "reverse") if device == "emulator" else ("forward",):
        outcome, caught = verdict(chapter, path, tmp_path, order, device)
        assert caught and not outcome.passed, f"{order}: {outcome.groups}\n{report(outcome)}"
