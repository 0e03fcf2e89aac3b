"""Text as windows of twelve tokens, by which an answer that leaked is found, or one that two students share."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

from tiny_vllm.course import markers
from tiny_vllm.course.chapter import Chapter, Exercise
from tiny_vllm.course.files import read_source
from tiny_vllm.device.source import strip_comments
from tiny_vllm.errors import UserError
from tiny_vllm.grading.submission import Submission

WINDOW = 12
Window = tuple[str, ...]

_TOKEN = re.compile(r"[^\W\d]\w*|\d[\w.]*|<<=|>>=|<<|>>|\+\+|--|->|&&|\|\||::|[-+*/%&|^<>=!]=|\S")
_PYTHON_COMMENT = re.compile(r'"""(?:\\.|.)*?"""|"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'|#[^\n]*", re.DOTALL)
_LINE_PREFIX = re.compile(r"^[ \t]*(?://|[#>|+*-])+[ \t]?", re.MULTILINE)  # of a comment, a quotation, a diff
ALIKE = 0.6  # of the smaller region's windows
_KEYWORDS = frozenset({"for", "if", "else", "while", "do", "return", "int", "float", "break", "in", "range", "import"})
_NAME = re.compile(r"[^\W\d]\w*")


def tokens(text: str) -> list[str]:
    """Names, numbers, operators and single marks, in the order of the text; white space and line ends part them."""
    return _TOKEN.findall(text)


def windows(text: str) -> set[Window]:
    """Every run of WINDOW tokens of a text."""
    found = tokens(text)
    return {tuple(found[i : i + WINDOW]) for i in range(len(found) - WINDOW + 1)}


def code(text: str, python: bool) -> str:
    """The text without its comments; string literals stay."""
    if not python:
        return strip_comments(text)
    return _PYTHON_COMMENT.sub(lambda found: "" if found[0].startswith("#") else found[0], text)


def readings(name: str, text: str) -> Iterator[str]:
    """The ways in which a reader may see code in a file: as it stands, between comments, inside them, in a diff.

    A notebook is read cell by cell, with its outputs.
    """
    parts = _strings(json.loads(text)) if name.endswith(".ipynb") else [text]
    for part in parts:
        plain = html.unescape(part).replace("\\n", "\n")
        yield plain
        yield code(plain, name.endswith((".py", ".toml")))
        yield _LINE_PREFIX.sub("", plain)


def _strings(node: Any) -> Iterator[str]:
    """Every text of a JSON document; a list of lines, as notebooks keep them, is one text."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, list) and all(isinstance(line, str) for line in node):
        yield "".join(node)
    elif isinstance(node, (list, dict)):
        for child in node.values() if isinstance(node, dict) else node:
            yield from _strings(child)


def worked_windows(chapters: Sequence[Chapter]) -> dict[Window, str]:
    """The windows of the worked regions, and which exercise each is of; none that the file's given lines show too."""
    found: dict[Window, str] = {}
    for chapter in chapters:
        for name in chapter.files:
            text, python = read_source(chapter.folder / name), name.endswith(".py")
            given = windows(code(markers.skeleton(text, python=False), python))
            for id, body in markers.bodies(text).items():
                found |= dict.fromkeys(windows(code(body, python)) - given, id)
    return found


def leaks(folder: Path, worked: Mapping[Window, str], hints: Iterable[str] = ()) -> Iterator[tuple[Path, str, Window]]:
    """(file, exercise, window) of each file that shows an answer; a chapter.toml may hold the level-3 hints."""
    allowed = set[Window]().union(*map(windows, hints))
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            shown = set[Window]().union(*map(windows, readings(file.name, file.read_text(encoding="utf-8"))))
        except UnicodeDecodeError:
            continue  # arrays and pictures
        if found := shown & worked.keys() - (allowed if file.name == "chapter.toml" else set()):
            yield file, worked[min(found)], min(found)


def pairs(chapters: Sequence[Chapter], handed_in: Sequence[Submission]) -> Iterator[tuple[str, str, str, float]]:
    """(exercise, student, student, share) of those who wrote a region alike; what its file gives to all counts not."""
    for chapter in chapters:
        for exercise in chapter.exercises:
            if exercise.file in chapter.files:
                shapes = dict(_shapes(chapter, exercise, handed_in))
                for first, second in combinations(sorted(shapes), 2):
                    smaller = min(len(shapes[first]), len(shapes[second]))
                    shared = len(shapes[first] & shapes[second])
                    if smaller and shared >= ALIKE * smaller:
                        yield exercise.id, first, second, shared / smaller


def _shapes(chapter: Chapter, exercise: Exercise, handed_in: Sequence[Submission]) -> Iterator[tuple[str, set[Window]]]:
    """(student, windows of the region); who handed in no file, or one with broken marks, is like nobody."""
    text, python = read_source(chapter.folder / exercise.file), exercise.file.endswith(".py")
    given = _shape(markers.skeleton(text, python) + exercise.hints[2], python)
    for each in handed_in:
        with suppress(UserError):
            body = each.bodies(f"{chapter.name}/{exercise.file}").get(exercise.id, "")
            yield each.student, _shape(body, python) - given


def _shape(text: str, python: bool) -> set[Window]:
    """The windows of a text without comments, every name made the same."""
    return windows(_NAME.sub(lambda name: name[0] if name[0] in _KEYWORDS else "name", code(text, python)))
