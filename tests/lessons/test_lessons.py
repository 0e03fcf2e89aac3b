"""Every lesson keeps the rules that can be counted; a bad one breaks each of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("jupytext", reason="the notebooks extra is not installed")

from tests.lessons.hints import BANDS, LONGEST_SECOND, overlap
from tests.lessons.lint import RULES, Lesson, words
from tiny_vllm.course.chapter import chapters
from tiny_vllm.course.markers import regions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "chapters").glob("ch??_*/README.md"))
BAD = Path(__file__).parent / "bad_lesson" / "README.md"


def lesson(path: Path) -> Lesson:
    return Lesson.read(path, tomllib.loads((path.parent / "chapter.toml").read_text())["minutes"])


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_lesson_keeps(rule, path):
    assert list(rule(lesson(path))) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_bad_lesson_breaks(rule):
    assert list(rule(Lesson.read(BAD, minutes=90)))


def test_the_bad_lesson_is_told_what_is_wrong():
    told = "\n".join(problem for rule in RULES for problem in rule(Lesson.read(BAD, minutes=90)))
    for part in (
        "'crucial' is filler",
        "'!'",
        "'Background' is a label",
        "says '4 ms'",
        "16 lines of code",
        "39 words",
    ):
        assert part in told, f"{part} is not in:\n{told}"


def worked(chapter, exercise) -> str:
    text = (chapter.folder / exercise.file).read_text(encoding="utf-8")
    return next(region.body for region in regions(text) if region.id == exercise.id)


HINTED = [
    pytest.param(chapter, exercise, id=exercise.id)
    for chapter in chapters()
    for exercise in chapter.exercises
    if exercise.kind != "fault"
]


@pytest.mark.parametrize("chapter, exercise", HINTED)
def test_hints_give_away_little_by_little(chapter, exercise):
    answer = worked(chapter, exercise)
    for level, (hint, (low, high)) in enumerate(zip(exercise.hints, BANDS, strict=True), 1):
        share = overlap(hint, answer, python=exercise.file.endswith(".py"))
        assert low <= share <= high, f"hint {level} holds {share:.0%} of the answer; {low:.0%} to {high:.0%}"
    assert "?" in exercise.hints[0], "the first hint asks"
    assert "`" not in exercise.hints[0], "the first hint holds no code"
    assert len(words(exercise.hints[1])) <= LONGEST_SECOND
    assert re.search(r"_{3,}", exercise.hints[2]), "the third hint has a hole"
