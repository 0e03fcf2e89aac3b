"""`tiny-vllm course rehearse --chapters 3`: release, invented submissions, grade, CSV; expected beside got.

The submissions are right, wrong and hostile ones, and what each deserves is known.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import tempfile
import textwrap
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiny_vllm.course import markers
from tiny_vllm.course.chapter import Chapter, chapter, tomllib
from tiny_vllm.course.files import read_source
from tiny_vllm.course.state import FILE as STATE
from tiny_vllm.grading.commands.grade import grade, seed, write_csv
from tiny_vllm.grading.commands.release import release
from tiny_vllm.grading.grader import Row, graded, wanted
from tiny_vllm.grading.submission import submissions

HOSTILE = {  # a region in each language
    "Loop": (".cu", "volatile int going = 1;\nwhile (going);\n"),
    "Crash": (".cu", "volatile int* nowhere = 0;\n*nowhere = 1;\n"),
    "Include": (".cu", '#include "{chapter.name}/{exercise.file}"\n'),
    "Forged": (
        ".cu",
        'printf("exercise {exercise.id}  passed\\n{{\\"passed\\": true, \\"score\\": {exercise.points}}}\\n");\n',
    ),
    "Import": (".py", "from chapters.{chapter.name} import {stem} as worked\n"),
}
STRAY = {"cases.py": "TASKS = ()\n", "conftest.py": "raise SystemExit(0)\n", "stage.py": "raise SystemExit(0)\n"}
MUTANTS = {  # by what a mutant's header says: the least and the most that it may get
    "Wrong": (r"caught by: (?!clean)", 0, 0.99),
    "Race": (r"caught by: clean[\s/|]+looks right on: every value(?! in reverse)", 0.5, 0.5),
}


@dataclass(frozen=True)
class Fake:
    """bodies: what stands in these exercises' regions (None: nothing); the others are right. low, high: the share of
    the points of these that it gets; without any, of all."""

    student: str
    bodies: Mapping[str, str | None]
    low: float
    high: float


def add_parser(commands: Any) -> None:
    """The options of `rehearse`."""
    parser = commands.add_parser("rehearse", help="release, grade invented submissions, compare with what they deserve")
    parser.add_argument("--chapters", type=int, nargs="+", required=True, metavar="N")
    parser.add_argument("--secret-seed", type=seed, default=1, metavar="SEED")
    parser.add_argument("--twist", type=int, metavar="N", help="the published answers are then wrong, too")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the bundle, the submissions and the CSV here")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints a line for each submission and chapter. 1 where one did not get what it deserves."""
    chapters = [chapter(number) for number in dict.fromkeys(arguments.chapters)]
    with contextlib.ExitStack() as stack:
        out = arguments.out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiny-vllm-rehearse-")))
        release(chapters, out / "bundle", arguments.twist)
        made = hand_in(chapters, out / "bundle", out / "moodle.zip")
        handed_in = submissions(out / "moodle.zip", wanted(chapters))
        rows, notes = grade(chapters, handed_in, arguments.secret_seed, arguments.twist)
        write_csv(out / "grades.csv", rows)
    print(f"{'submission':<12} {'chapter':>7}  {'exercises':<14} {'expected':>12} {'got':>5}")
    lines = [compare(each, fake, rows, arguments.twist) for each, fake in made]
    print("\n".join([*(text for _, text in lines), *(f"note: {note}" for note in notes)]))
    return 0 if all(right for right, _ in lines) else 1


def compare(chapter: Chapter, fake: Fake, rows: Sequence[Row], number: int | None) -> tuple[bool, str]:
    """Whether a fake got what it deserves for a chapter, and its line of the table."""
    asked = list(fake.bodies) or [each.id for each in graded(chapter)]
    if number is not None and not fake.bodies:  # the published answer: right for another task
        asked, fake = [each.id for each in chapter.exercises if number in each.twists], replace(fake, low=0, high=0.4)
    mine = [row for row in rows if row.student.startswith(f"{fake.student} ") and row.exercise in asked]
    share = sum(row.score for row in mine) / (sum(row.max for row in mine) or 1)
    right = fake.low <= round(share, 3) <= fake.high and {row.exercise for row in mine} == set(asked)
    expected = f"{fake.low:.0%}" if fake.low == fake.high else f"{fake.low:.0%} to {fake.high:.0%}"
    line = f"{fake.student:<12} {chapter.number:>7}  {' '.join(asked):<14} {expected:>12} {share:>5.0%}"
    return right, line + ("" if right else "   <- not as expected")


def fakes(chapter: Chapter) -> Iterator[Fake]:
    """As many of the nine as the chapter has exercises and mutants for."""
    yield Fake("Right", {}, 1, 1)
    yield Fake("Unsolved", {exercise.id: None for exercise in graded(chapter)}, 0, 0)
    for student, (suffix, body) in HOSTILE.items():
        fitting = (each for each in graded(chapter) if each.kind != "fault" and each.file.endswith(suffix))
        if exercise := next(fitting, None):
            filled = body.format(chapter=chapter, exercise=exercise, stem=Path(exercise.file).stem)
            yield Fake(student, {exercise.id: filled}, 0, 0)
    for student, (header, low, high) in MUTANTS.items():
        if bodies := next(_mutants(chapter, header), None):
            yield Fake(student, bodies, low, high)


def _worked(chapter: Chapter) -> dict[str, markers.Region]:
    """The regions of the worked files, by exercise."""
    texts = [read_source(chapter.folder / name) for name in chapter.files]
    return {region.id: region for text in texts for region in markers.regions(text)}


def _mutants(chapter: Chapter, header: str) -> Iterator[dict[str, str]]:
    """(exercise -> region) of the mutants with such a header that differ from the worked file in one graded region."""
    counted, worked = {exercise.id for exercise in graded(chapter)}, _worked(chapter)
    for file in sorted((chapter.folder / "mutants").glob("*.cu")):
        text = read_source(file)
        other = {id: body for id, body in markers.bodies(text).items() if id in worked and body != worked[id].body}
        if re.search(header, text) and len(other) == 1 and other.keys() <= counted:
            yield other


def hand_in(chapters: Sequence[Chapter], bundle: Path, out: Path) -> list[tuple[Chapter, Fake]]:
    """Moodle's zip of all, made from a release's skeletons; returns who handed in what for each chapter."""
    made = [(each, fake) for each in chapters for fake in fakes(each)]
    answers: dict[str, Any] = {}
    for file in (each.folder / "lecturer" / "answers.toml" for each in chapters):
        answers |= tomllib.loads(read_source(file)) if file.is_file() else {}
    with zipfile.ZipFile(out, "w") as moodle:
        for number, student in enumerate(dict.fromkeys(fake.student for _, fake in made), 70001):
            files = {STATE: json.dumps({"answers": answers if student != "Unsolved" else {}})}
            for each, fake in made:
                files |= dict(_files(each, fake, bundle)) if fake.student == student else {}
            folder = f"{student} Example_{number}_assignsubmission_file_"
            with moodle.open(f"{folder}/work.zip", "w") as inner, zipfile.ZipFile(inner, "w") as work:
                for name, text in files.items():
                    work.writestr(f"work/{name}", text.replace("\n", "\r\n"))  # as editors on Windows leave it
    return made


def _files(chapter: Chapter, fake: Fake, bundle: Path) -> Iterator[tuple[str, str]]:
    """(name in work/, text): the chapter's own, and files that nobody asked for."""
    yield from ((f"{chapter.name}/{name}", text) for name, text in STRAY.items())
    bodies = {
        id: textwrap.indent(textwrap.dedent(body), region.indent)
        for id, region in _worked(chapter).items()
        if (body := fake.bodies.get(id, region.body)) is not None
    }
    for name in chapter.files:
        yield f"{chapter.name}/{name}", markers.fill(read_source(bundle / "chapters" / chapter.name / name), bodies)
