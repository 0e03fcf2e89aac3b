"""Which students' regions are alike: shared windows of tokens, whatever the names and the comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from tiny_vllm.course import markers
from tiny_vllm.course.chapter import Chapter
from tiny_vllm.course.submission import Submission
from tiny_vllm.course.tokens import Window, code, windows
from tiny_vllm.errors import UserError

ALIKE = 0.6  # of the smaller region's windows
_KEYWORDS = frozenset({"for", "if", "else", "while", "do", "return", "int", "float", "break", "in", "range", "import"})


def pairs(chapters: Sequence[Chapter], handed_in: Sequence[Submission]) -> Iterator[tuple[str, str, str, float]]:
    """(exercise, student, student, share) of those who wrote a region alike; what its file gives to all counts not."""
    for chapter in chapters:
        for exercise in chapter.exercises:
            if exercise.file in chapter.files:
                text, python = (
                    (chapter.folder / exercise.file).read_text(encoding="utf-8"),
                    exercise.file.endswith(".py"),
                )
                given = shape(markers.skeleton(text, python) + exercise.hints[2], python)
                bodies = {
                    each.student: _body(each, f"{chapter.name}/{exercise.file}", exercise.id) for each in handed_in
                }
                shapes = {student: shape(body, python) - given for student, body in bodies.items()}
                yield from ((exercise.id, *pair) for pair in alike(shapes))


def alike(shapes: Mapping[str, set[Window]]) -> Iterator[tuple[str, str, float]]:
    """The pairs that have at least ALIKE of the smaller one's windows in common."""
    for first, second in combinations(sorted(shapes), 2):
        smaller = min(len(shapes[first]), len(shapes[second]))
        share = len(shapes[first] & shapes[second]) / smaller if smaller else 0.0
        if share >= ALIKE:
            yield first, second, share


def shape(text: str, python: bool) -> set[Window]:
    """The windows of a text without comments, every name made the same."""
    nameless = re.compile(r"[^\W\d]\w*").sub(
        lambda found: found[0] if found[0] in _KEYWORDS else "name", code(text, python)
    )
    return windows(nameless)


def _body(submission: Submission, file: str, exercise: str) -> str:
    try:
        return markers.bodies(submission.files.get(file, "")).get(exercise, "")
    except UserError:  # broken marks
        return ""
