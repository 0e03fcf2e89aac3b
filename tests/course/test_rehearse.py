"""The rehearsal: nine invented submissions get what they deserve, and the table says so when one does not."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tiny_vllm.course.chapter import chapter, tomllib
from tiny_vllm.grading.commands import grade, rehearse
from tiny_vllm.grading.commands.rehearse import Fake, fakes
from tiny_vllm.grading.grader import Row
from tiny_vllm.grading.submission import Submission

ROOT = Path(__file__).resolve().parents[2]
NINE = {"Right", "Unsolved", "Wrong", "Loop", "Crash", "Include", "Import", "Forged", "Race"}


def row(exercise: str, score: float, most: float) -> Row:
    return Row("Ada Example", 42, exercise, "basic", score, most, "", "0", "0")


@pytest.mark.parametrize(
    "fake, rows, right, said",
    [
        (Fake("Ada", {"42.2": ""}, 0, 0), [row("42.1", 5, 5), row("42.2", 0, 10)], True, "0%"),
        (Fake("Ada", {"42.2": ""}, 0, 0), [row("42.2", 1, 10)], False, "10%   <- not as expected"),
        (Fake("Ada", {"42.2": ""}, 0, 0), [row("42.1", 0, 5)], False, "not as expected"),
        (Fake("Ada", {"42.3": ""}, 0.5, 0.5), [row("42.3", 2, 4), row("42.3", 3, 6)], True, "50%"),
        (Fake("Eve", {"42.3": ""}, 0, 1), [row("42.3", 2, 4)], False, "not as expected"),
    ],
)
def test_a_line_of_the_table(small, fake, rows, right, said):
    is_right, line = rehearse.compare(small, fake, rows, None)
    assert is_right == right and line.endswith(said)


def test_under_a_twist_the_published_answer_may_get_four_tenths_of_the_twisted_exercises(small):
    published = Fake("Ada", {}, 1, 1)
    assert rehearse.compare(small, published, [row("42.1", 5, 5), row("42.2", 4, 10)], 1)[0]
    assert not rehearse.compare(small, published, [row("42.1", 5, 5), row("42.2", 5, 10)], 1)[0]
    everything = [row("42.1", 5, 5), *(row(f"42.{n}", 10, 10) for n in (2, 3, 4))]
    assert rehearse.compare(small, published, everything, None)[0]
    assert not rehearse.compare(small, published, [*everything[:3], replace(everything[3], score=0)], None)[0]


def test_chapter_three_has_all_nine():
    made = {fake.student: fake for fake in fakes(chapter(3))}
    assert made.keys() == NINE
    assert [*made["Race"].bodies] == ["3.3"] and "partial[0] += " in str(made["Race"].bodies)
    assert [*made["Unsolved"].bodies] == ["3.1", "3.2", "3.3", "3.4"]


def tree_hash(root: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(file.as_posix().encode() + file.read_bytes())
    return digest.hexdigest()


@pytest.mark.deep
def test_nine_submissions_of_chapter_three(tmp_path, course):
    lecturers = tmp_path / "lecturers"
    for part in ("chapters", "kernels", "tiny_vllm", "docs", "notebooks", "tests/data"):
        shutil.copytree(ROOT / part, lecturers / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", lecturers)
    before = tree_hash(lecturers)
    settings = ("--chapters", "3", "--secret-seed", "20261", "--out", str(tmp_path / "out"))
    done = course("rehearse", *settings, tree=lecturers)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree_hash(lecturers) == before
    lines = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()}
    got = {name: int(lines[name].rstrip("%")) for name in NINE}
    assert got.pop("Wrong") < 100
    assert got == dict.fromkeys(NINE - {"Wrong"}, 0) | {"Right": 100, "Race": 50}
    assert (tmp_path / "out" / "moodle.zip").is_file()
    with (tmp_path / "out" / "grades.csv").open(encoding="utf-8", newline="") as stream:
        students = {row["student"] for row in csv.DictReader(stream)}
    assert students == {f"{name} Example" for name in NINE}


@pytest.mark.deep
@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_published_answer_gets_at_most_four_tenths_under_a_twist(number):
    three = chapter(3)
    answers = tomllib.loads((three.folder / "lecturer" / "answers.toml").read_text("utf-8"))
    files = {f"{three.name}/{name}": (three.folder / name).read_text("utf-8") for name in three.files}
    public = Submission("public", files | {".course.json": json.dumps({"answers": answers})})
    rows, _ = grade.grade([three], [public], 20261, number)
    [(score, most)] = grade.totals_of(rows).values()
    assert most == 40 and score == 15  # the warm-up and the fault
    assert not any(row.score for row in rows if number in three.exercise(row.exercise).twists)
