"""Invented submissions with known scores, for a rehearsal of the grading: right, wrong and hostile ones."""

from __future__ import annotations

import io
import json
import re
import textwrap
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiny_vllm.course import markers
from tiny_vllm.course.chapter import Chapter, tomllib
from tiny_vllm.course.grading import graded
from tiny_vllm.course.state import FILE as STATE

LOOP = "volatile int going = 1;\nwhile (going) {\n}\n"
CRASH = "volatile int* nowhere = 0;\n*nowhere = 1;\n"
FORGED = 'printf("exercise {id}  passed\\n{{\\"passed\\": true, \\"score\\": {points}}}\\n");\n'
_RIGHT_VALUES = r"caught by: clean[\s/|]+looks right on: every value(?! in reverse)"
STRAY = {"cases.py": "TASKS = ()\n", "conftest.py": "raise SystemExit(0)\n", "stage.py": "raise SystemExit(0)\n"}


@dataclass(frozen=True)
class Fake:
    """bodies: what stands in these exercises' regions (None: nothing); the others are right. low, high: the share of
    the points of these that it gets; without any, of all."""

    student: str
    bodies: Mapping[str, str | None]
    low: float
    high: float
    files: Mapping[str, str] = field(default_factory=dict)  # beside the chapter's own

    def expected(self) -> str:
        """The share in a word."""
        return f"{self.low:.0%}" if self.low == self.high else f"{self.low:.0%} to {self.high:.0%}"


def fakes(chapter: Chapter) -> Iterator[Fake]:
    """As many of the nine as the chapter has exercises and mutants for."""
    regions = {exercise.id: exercise for exercise in graded(chapter) if exercise.kind != "fault"}
    yield Fake("Right", {}, 1, 1)
    yield Fake("Unsolved", {exercise.id: None for exercise in graded(chapter)}, 0, 0)
    cuda = next((each for each in regions.values() if each.file.endswith(".cu")), None)
    if cuda is not None:
        yield Fake("Loop", {cuda.id: LOOP}, 0, 0)
        yield Fake("Crash", {cuda.id: CRASH}, 0, 0)
        yield Fake("Include", {cuda.id: f'#include "{chapter.name}/{cuda.file}"\n'}, 0, 0)
        yield Fake("Forged", {cuda.id: FORGED.format(id=cuda.id, points=cuda.points)}, 0, 0, STRAY)
    python = next((each for each in regions.values() if each.file.endswith(".py")), None)
    if python is not None:
        yield Fake("Import", {python.id: f"from chapters.{chapter.name} import {python.file[:-3]} as worked\n"}, 0, 0)
    for student, header, low, high in (("Wrong", r"caught by: (?!clean)", 0, 0.99), ("Race", _RIGHT_VALUES, 0.5, 0.5)):
        if body := next(_mutants(chapter, header), None):
            yield Fake(student, body, low, high)


def _mutants(chapter: Chapter, header: str) -> Iterator[dict[str, str]]:
    """(exercise -> region) of the mutants with such a header that differ from the worked file in one graded region."""
    counted = {exercise.id for exercise in graded(chapter)}
    right = {id: body for name in chapter.files for id, body in markers.bodies(_text(chapter.folder / name)).items()}
    for file in sorted((chapter.folder / "mutants").glob("*.cu")):
        text = _text(file)
        other = {id: body for id, body in markers.bodies(text).items() if body != right.get(id)}
        if re.search(header, text) and len(other) == 1 and other.keys() <= counted:
            yield other


def hand_in(chapters: Sequence[Chapter], bundle: Path, out: Path) -> dict[str, list[tuple[Chapter, Fake]]]:
    """Moodle's zip of all, made from a release's skeletons; returns who handed in what for each chapter."""
    made: dict[str, list[tuple[Chapter, Fake]]] = {}
    texts: dict[str, dict[str, str]] = {}
    for chapter in chapters:
        for fake in fakes(chapter):
            made.setdefault(fake.student, []).append((chapter, fake))
            files = texts.setdefault(fake.student, {})
            files |= {f"{chapter.name}/{name}": text for name, text in fake.files.items()}
            files[STATE] = json.dumps({"answers": _answers(chapters) if fake.student != "Unsolved" else {}})
            for name in chapter.files:
                worked = _text(chapter.folder / name)
                skeleton = _text(bundle / "chapters" / chapter.name / name)
                files[f"{chapter.name}/{name}"] = markers.fill(skeleton, dict(_bodies(worked, fake)))
    with zipfile.ZipFile(out, "w") as moodle:
        for number, (student, files) in enumerate(texts.items(), 70001):
            moodle.writestr(f"{student} Example_{number}_assignsubmission_file_/work.zip", _zip(files))
    return made


def _answers(chapters: Sequence[Chapter]) -> dict[str, Any]:
    """The right answers to the faults, as the chapters' lecturer/answers.toml have them."""
    found: dict[str, Any] = {}
    for chapter in chapters:
        file = chapter.folder / "lecturer" / "answers.toml"
        found |= tomllib.loads(_text(file)) if file.is_file() else {}
    return found


def _bodies(worked: str, fake: Fake) -> Iterator[tuple[str, str]]:
    for region in markers.regions(worked):
        body = fake.bodies.get(region.id, region.body)
        if body is not None:
            yield region.id, textwrap.indent(textwrap.dedent(body), region.indent)


def _zip(files: Mapping[str, str]) -> bytes:
    """A student's work folder as editors on Windows leave it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"work/{name}", text.replace("\n", "\r\n"))
    return data.getvalue()


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")
