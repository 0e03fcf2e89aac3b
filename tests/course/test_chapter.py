"""chapter.toml as the course reads it, and what is said of one that is wrong."""

from __future__ import annotations

import pytest

from tiny_vllm.course import chapter as chapters
from tiny_vllm.errors import UserError

TOML = """
number = 42
title = "Sums"
needs = [2, 3]
minutes = 30
[[exercise]]
id = "42.1"
title = "double"
kind = "core"
stars = 2
points = 10
minutes = 15
file = "sums.cu"
hints = ["one", "two", "three"]
[exercise.twist.1]
sentence = "Treble it."
[[exercise]]
id = "42.2"
title = "the fault"
kind = "fault"
stars = 1
points = 5
minutes = 5
file = "faults/42_2.cu"
hints = ["a", "b", "c"]
[[question]]
id = "W1"
kind = "computes"
text = "How many bytes?"
[[prediction]]
id = "42.a"
question = "How many?"
"""


def write(folder, text=TOML):
    (folder / "ch42_sums").mkdir(exist_ok=True)
    (folder / "ch42_sums" / "chapter.toml").write_text(text, encoding="utf-8")
    return folder


def test_a_chapter(tmp_path):
    chapter = chapters.chapter(42, write(tmp_path))
    assert (chapter.number, chapter.name, chapter.title, chapter.needs) == (42, "ch42_sums", "Sums", (2, 3))
    assert chapter.folder == tmp_path / "ch42_sums" and chapter.minutes == 30
    first = chapter.exercise("42.1")
    assert (first.kind, first.stars, first.points, first.file) == ("core", 2, 10, "sums.cu")
    assert first.hints == ("one", "two", "three") and first.twists == {1: "Treble it."}
    assert chapter.files == ("sums.cu",)  # a fault is read, not filled in
    assert chapter.questions[0]["kind"] == "computes" and chapter.predictions[0]["question"] == "How many?"
    assert chapters.chapters(tmp_path) == [chapter]


def test_what_a_user_means(tmp_path):
    root = write(tmp_path)
    assert chapters.find("42", root)[1] is None
    assert chapters.find("42.2", root)[1] == chapters.chapter(42, root).exercise("42.2")


@pytest.mark.parametrize(
    "target, message",
    [
        ("7", "there is no chapter 7 with exercises; there are: 42"),
        ("42.9", r"there is no exercise 42\.9; chapter 42 has 42\.1, 42\.2"),
        ("rms", "'rms' is neither a chapter nor an exercise; give a number such as 3 or 3.2"),
        ("42.2.1", "neither a chapter nor an exercise"),
    ],
)
def test_what_is_not_there(tmp_path, target, message):
    with pytest.raises(UserError, match=message):
        chapters.find(target, write(tmp_path))


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('title = "Sums"\n', "", "lacks 'title'"),
        (
            'kind = "core"',
            'kind = "hard"',
            r"exercise 42\.1 is of kind 'hard', not one of warm-up, core, fault, stretch",
        ),
        ('"two", ', "", "cannot be read"),
        ("points = 10", "point = 10", "cannot be read"),
        ("number = 42", "number = ", "cannot be read"),
    ],
)
def test_a_table_that_is_wrong_is_named(tmp_path, old, new, message):
    assert old in TOML
    with pytest.raises(UserError, match=f"ch42_sums/chapter.toml {message}|{message}"):
        chapters.chapter(42, write(tmp_path, TOML.replace(old, new)))
