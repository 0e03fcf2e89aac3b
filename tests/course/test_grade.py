"""Grades: right scores for right, wrong and hostile regions, and nothing of the lecturer's touched or shown."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest

from tiny_vllm import cli
from tiny_vllm.course import markers
from tiny_vllm.errors import UserError
from tiny_vllm.grading.commands import grade
from tiny_vllm.grading.grader import Grader, nvrtc_installed, wanted
from tiny_vllm.grading.submission import Submission
from tiny_vllm.grading.tree import copy_tree
from tiny_vllm.grading.windows import readings, windows, worked_windows

FAULT = {"line": 10, "kind": "race", "repair": "    if (threadIdx.x == 0) result[0] = best[0];"}
RACE = "    if (threadIdx.x > 0) partial[0] += partial[threadIdx.x];\n    __syncthreads();\n"


def tree_hash(root: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(file.as_posix().encode() + file.read_bytes())
    return digest.hexdigest()


def files(chapter, bodies: dict[str, str]) -> dict[str, str]:
    """A work folder: the worked answers, with these in place of some."""
    worked = {f"{chapter.name}/{file}": (chapter.folder / file).read_text("utf-8") for file in chapter.files}
    filled = {name: markers.fill(text, bodies) for name, text in worked.items()}
    return filled | {".course.json": json.dumps({"answers": {"42.4": FAULT}})}


def zipped(files: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text.replace("\n", "\r\n"))
    return data.getvalue()


def scores(rows) -> dict[str, float]:
    """The points of each exercise, for a single student."""
    total: dict[str, float] = {}
    for row in rows:
        total[row.exercise] = total.get(row.exercise, 0.0) + row.score
    return {exercise: round(points, 2) for exercise, points in total.items()}


@pytest.fixture
def handed_in(small, tmp_path) -> Path:
    """Moodle's zip of three students: all right; an import, a call into the host and a race; nothing."""
    hostile = {"42.1": "    from chapters.ch42_sums import warm_up\n", "42.2": '    puts("hello");\n', "42.3": RACE}
    members = {
        "Ada Lovelace_7_assignsubmission_file_/work.zip": zipped(files(small, {})),
        "=Eve_8_assignsubmission_file_/my work.zip": zipped({f"x/{n}": t for n, t in files(small, hostile).items()}),
        "Nobody_9_assignsubmission_file_/": b"",
    }
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return tmp_path / "all.zip"


def test_a_moodle_zip_from_end_to_end(small, tree, tmp_path, handed_in, monkeypatch, capsys):
    monkeypatch.setattr(grade, "chapter", lambda number: small)
    before = tree_hash(tree)
    out = {"csv": tmp_path / "g.csv", "json": tmp_path / "g.json"}
    assert (
        grade.run(Namespace(submissions=handed_in, chapters=[42], secret_seed=5, twist=None, similar=True, **out)) == 0
    )
    assert tree_hash(tree) == before

    report = json.loads(out["json"].read_text("utf-8"))
    assert report["totals"] == {"=Eve": [15, 35], "Ada Lovelace": [35, 35], "Nobody": [0, 35]}
    rows = {(row["student"], row["exercise"], row["group"]): row for row in report["rows"]}
    assert {(s, e) for s, e, _ in rows} == {(s, f"42.{n}") for s in report["totals"] for n in (1, 2, 3, 4)}
    assert [rows["Ada Lovelace", "42.2", group]["max"] for group in ("basic", "tails", "numbers", "limits")] == [
        4,
        3,
        2,
        1,
    ]
    assert not any(row["first_failure"] for row in report["rows"] if row["student"] == "Ada Lovelace")
    assert rows["=Eve", "42.1", "all"]["first_failure"] == (
        "refused: import chapters.ch42_sums.warm_up, which the skeleton lacks"
    )
    if nvrtc_installed():  # the emulator, a host's program, knows puts
        first = rows["=Eve", "42.2", "all"]["first_failure"]
        assert first.startswith("NVRTC refuses it: ") and "puts" in first
    race = rows["=Eve", "42.3", "basic"]  # right values, in a race: half of 4
    assert (race["score"], race["max"]) == (2, 4) and "race" in race["first_failure"]
    assert "there is no ch42_sums/sums.cu in the submission" in rows["Nobody", "42.2", "all"]["first_failure"]
    assert {row["seed_hash"] for row in report["rows"]} == {hashlib.sha256(b"5").hexdigest()[:12]}

    with out["csv"].open(encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert len(table) == len(rows) and table[0]["student"] == "'=Eve"  # no formula for a spreadsheet
    assert sum(float(row["score"]) for row in table if row["student"] == "Ada Lovelace") == pytest.approx(35)
    printed = capsys.readouterr().out
    assert "Ada Lovelace               35.0 of 35\n" in printed and "42.1 refused: import" in printed


def test_what_runs_sees_no_answer(small, tmp_path):
    copy_tree(tmp_path, [small])
    worked = worked_windows([small])
    assert len(worked) > 30 and set(worked.values()) == {"42.2", "42.3"}  # 42.1 is shorter than a window
    for file in tmp_path.rglob("*"):
        if file.suffix in (".cu", ".cuh", ".py") and file.parent.name != "faults":
            assert not any(windows(text) & worked.keys() for text in readings(file.name, file.read_text("utf-8"))), file
    assert not list(tmp_path.rglob("mutants")) and not (tmp_path / "tests").exists()


def test_marks_that_are_gone_and_an_unreadable_state(small):
    handed = files(small, {})
    handed["ch42_sums/sums.cu"] = handed["ch42_sums/sums.cu"].replace("// EXERCISE-END 42.2", "")
    handed["ch42_sums/warm_up.py"] = "def double(x):\n    return 2 * x\n"
    for state in ("[" * 100_000, '{"answers": 3}', "no JSON"):
        rows = Grader((small,), small.folder.parents[1], 5).grade(Submission("ada", handed | {".course.json": state}))
        assert [(row.exercise, row.group, row.score) for row in rows] == [(f"42.{n}", "all", 0) for n in (1, 2, 3, 4)]
        failures = {row.exercise: row.first_failure for row in rows}
        assert failures["42.1"] == "the marks of exercise 42.1 are gone from warm_up.py"
        assert "exercise 42.3 begins inside the region of exercise 42.2" in failures["42.2"]
        no_json = state != '{"answers": 3}'
        wrong = "is damaged: " if no_json else "holds no answer to exercise 42.4"
        assert failures["42.4"].startswith(f".course.json of the submission {wrong}")


def test_a_fault_without_an_answer_says_what_hides_it(small):
    grader = Grader((small,), small.folder.parents[1], 5)
    for problem, words in (
        ("ada.zip is no zip", "there is no .course.json in the submission (ada.zip is no zip)"),
        ("", "there is no .course.json in the submission, which holds the answer to exercise 42.4"),
    ):
        *_, row = grader.grade(Submission("ada", {}, problem))
        assert (row.exercise, row.first_failure) == ("42.4", words)


@pytest.mark.parametrize("text", ["-1", "x", "1.5", ""])
def test_a_seed_is_a_number(text, capsys):
    assert cli.main(["course", "grade", "in", "--chapters", "3", f"--secret-seed={text}"]) == 2
    assert "is no seed; give a whole number, 0 or larger" in capsys.readouterr().err


@pytest.mark.deep
def test_under_a_twist_the_public_answer_fails_and_the_twisted_one_passes(small):
    twisted = "    for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = factor * x[c] + 2;\n"
    students = [Submission("public", files(small, {})), Submission("twisted", files(small, {"42.2": twisted}))]
    rows, _ = grade.grade([small], students, 5, number=1)
    assert scores(row for row in rows if row.student == "public")["42.2"] == 0
    assert scores(row for row in rows if row.student == "twisted") == {"42.1": 5, "42.2": 10, "42.3": 10, "42.4": 10}
    with pytest.raises(UserError, match="no exercise has a twist 4"):
        grade.grade([small], students, 5, number=4)


@pytest.mark.deep
def test_only_secret_inputs_find_an_answer_made_for_the_public_ones(small):
    learned = "    if (columns == 64 || columns == 33 || columns == 7 || columns == 1000)\n" + (
        "        for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = factor * x[c] + 1;\n"
    )
    rows, _ = grade.grade([small], [Submission("ada", files(small, {"42.2": learned}))], 5)
    assert scores(rows) == {"42.1": 5, "42.2": 0, "42.3": 10, "42.4": 10}


def test_what_is_taken_from_a_submission(small):
    assert wanted([small]) == ["ch42_sums/warm_up.py", "ch42_sums/sums.cu", ".course.json"]
