"""The files that check one exercise alone: its body, stand-ins for the rest, a student's line numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tiny_vllm.course import markers
from tiny_vllm.course.answer import Answer
from tiny_vllm.course.compose import compose, stand_ins
from tiny_vllm.errors import UserError


@pytest.fixture
def composed(small, work, tmp_path):
    def make(exercise: str, file: str = "sums.cu") -> str:
        compose(small, work, exercise, tmp_path / "target")
        return (tmp_path / "target" / small.name / file).read_text("utf-8")

    return make


def test_the_rest_is_stand_ins(composed, write):
    write("42.2", "    mine();\n")
    write("42.3", "    theirs();\n")
    text = composed("42.2")
    assert "mine();" in text and "theirs();" not in text
    assert "for (int t = 1; t < blockDim.x; t++) partial[0] += partial[t];" in text
    assert "the worked" not in markers.bodies(text)["42.3"] and "stand_ins" not in text  # their header stays behind
    text = composed("42.3")
    assert "theirs();" in text and "mine();" not in text and "while (c < columns)" in text


def test_what_stands_outside_the_regions_is_the_chapters(composed, write, work):
    file = work / "ch42_sums" / "sums.cu"
    file.write_text(file.read_text("utf-8").replace("float sum = 0.0f;", "float sum = 1.0f;"), "utf-8")
    assert "float sum = 0.0f;" in composed("42.3")


def test_a_file_without_the_exercise_is_a_skeleton_with_stand_ins(composed):
    assert 'raise NotImplementedError("exercise 42.1 is not solved yet;' in composed("42.2", "warm_up.py")


def test_every_line_behind_a_mark_has_the_students_number(composed, write, work):
    write("42.2", "    // one\n    // two\n    // three\n    mine();\n")
    write("42.3", "    theirs();\n")
    theirs = (work / "ch42_sums" / "sums.cu").read_text("utf-8").splitlines()
    number, found = 1, 0
    for line in composed("42.3").splitlines():
        if match := re.fullmatch(r'#line (\d+) "work/ch42_sums/sums\.cu"', line):
            number = int(match[1])
            continue
        if "theirs();" in line or "total[blockIdx.x] =" in line or "// EXERCISE-END" in line:
            assert theirs[number - 1] == line
            found += 1
        number += 1
    assert found == 4


def test_a_python_stand_in_takes_the_marks_indent(small, tmp_path):
    (tmp_path / "stand_ins").mkdir()
    (tmp_path / "stand_ins" / "42_1.py").write_text("# a header\nif True:\n    y = x + x\n")
    text = (small.folder / "warm_up.py").read_text("utf-8")
    assert dict(stand_ins(replace(small, folder=tmp_path), text)) == {"42.1": "    if True:\n        y = x + x\n"}


def test_what_is_missing_is_named(small, work):
    answer = Answer(small, small.exercise("42.2"), work)
    assert answer.name == "work/ch42_sums/sums.cu" and not answer.region.solved
    with pytest.raises(
        UserError, match=r"there is no work/ch42_sums/nothing\.cu; `tiny-vllm course start 42` writes it"
    ):
        _ = Answer(small, replace(answer.exercise, file="nothing.cu"), work).text
    with pytest.raises(UserError, match=r"sums\.cu has no marks of exercise 42\.7; put them back, or"):
        _ = Answer(small, replace(answer.exercise, id="42.7"), work).region
