"""`tiny-vllm course update` on local repositories: the lecturer pushes, a student pulls."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.course.conftest import make_tree
from tiny_vllm.course import markers

NEW_CELLS = '[{"cell_type": "markdown", "source": "new"}]'
RIGHT = "    y[0] = 3;  // my answer\n"


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def lecturer(tmp_path) -> Path:
    folder = make_tree(tmp_path / "lecturer")
    (folder / "notebooks").mkdir()
    (folder / "notebooks" / "42_sums.ipynb").write_text('{"cells": []}\n')
    (folder / ".gitignore").write_text("work/\n__pycache__/\n")
    git(tmp_path, "init", "-q", "-b", "main", str(folder))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def student(tmp_path, lecturer, course) -> Path:
    """A clone in which chapter 42 was started and 42.2 answered."""
    git(tmp_path, "clone", "-q", str(lecturer), "student")
    folder = tmp_path / "student"
    assert course("start", "42", tree=folder, work=folder / "work").returncode == 0
    file = folder / "work" / "ch42_sums" / "sums.cu"
    file.write_text(markers.fill(file.read_text("utf-8"), {"42.2": RIGHT}), "utf-8")
    return folder


@pytest.fixture
def update(course, student):
    return lambda: course("update", tree=student, work=student / "work")


def change(lecturer: Path, file: str, old: str, new: str) -> None:
    path = lecturer / file
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    git(lecturer, "commit", "-qam", "change")


def test_answers_move_into_a_changed_skeleton(update, student, lecturer):
    file = student / "work" / "ch42_sums" / "sums.cu"
    before = file.read_bytes()
    change(lecturer, "chapters/ch42_sums/sums.cu", "Two kernels, one block a row", "Two kernels, a block a row")
    done = update()
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "pulled 1 commit\nwork/ch42_sums/sums.cu is new around your answers; "
        "the old file is work/.attic/ch42_sums/sums.1.cu\n"
    )
    text = file.read_text("utf-8")
    assert "Two kernels, a block a row" in text and markers.bodies(text) == {"42.2": RIGHT, "42.3": ""}
    assert (student / "work" / ".attic" / "ch42_sums" / "sums.1.cu").read_bytes() == before
    assert update().stdout == "the chapters are the newest already\n"


def test_a_pull_by_hand_is_noticed(update, student, lecturer):
    change(lecturer, "chapters/ch42_sums/sums.cu", "Two kernels, one block a row", "Two kernels, a block a row")
    git(student, "pull", "-q", "--ff-only")
    assert "sums.cu is new around your answers" in update().stdout


def test_lines_of_ones_own_outside_the_regions_stay_while_the_skeleton_does(update, student, lecturer):
    file = student / "work" / "ch42_sums" / "sums.cu"
    file.write_text(file.read_text("utf-8") + "// my notes\n", "utf-8")
    change(lecturer, "kernels/argmax.cu", "//", "///")
    assert update().stdout == "pulled 1 commit\n"
    assert file.read_text("utf-8").endswith("// my notes\n")


def test_a_changed_notebook_is_rescued(update, student, lecturer):
    notebook = student / "notebooks" / "42_sums.ipynb"
    notebook.write_text('{"cells": ["mine"]}\n')
    change(lecturer, "notebooks/42_sums.ipynb", "[]", NEW_CELLS)
    done = update()
    assert done.returncode == 0, done.stderr
    assert (
        "notebooks/42_sums.ipynb had your changes: they are in work/.attic/notebooks/42_sums.1.ipynb\n" in done.stdout
    )
    assert notebook.read_text() == f'{{"cells": {NEW_CELLS}}}\n'
    assert (student / "work" / ".attic" / "notebooks" / "42_sums.1.ipynb").read_text() == '{"cells": ["mine"]}\n'


def test_an_unchanged_copy_of_a_notebook_is_renewed(update, student, lecturer):
    """It was run, too: what cells print is no change of theirs."""
    own = student / "work" / "ch42_sums" / "42_sums.ipynb"
    own.write_text('{"cells": [], "nbformat": 4}\n')
    change(lecturer, "notebooks/42_sums.ipynb", "[]", NEW_CELLS)
    assert update().stdout == (
        "pulled 1 commit\nwork/ch42_sums/42_sums.ipynb is new; the old file is work/.attic/ch42_sums/42_sums.1.ipynb\n"
    )
    assert json.loads(own.read_text())["cells"] == json.loads(NEW_CELLS)
    assert update().stdout == "the chapters are the newest already\n"


@pytest.mark.parametrize("mine", ['{"cells": [{"cell_type": "code", "source": "2 + 2"}]}\n', "no notebook"])
def test_a_changed_copy_of_a_notebook_stays_and_the_new_one_lies_beside_it(update, student, lecturer, mine):
    own = student / "work" / "ch42_sums" / "42_sums.ipynb"
    own.write_text(mine)
    change(lecturer, "notebooks/42_sums.ipynb", "[]", NEW_CELLS)
    assert update().stdout == (
        "pulled 1 commit\nwork/ch42_sums/42_sums.ipynb has your changes and stays; "
        "the new one is work/ch42_sums/42_sums.new.ipynb\n"
    )
    assert own.read_text() == mine
    assert json.loads(own.with_name("42_sums.new.ipynb").read_text())["cells"] == json.loads(NEW_CELLS)
    assert update().stdout == "the chapters are the newest already\n"


@pytest.mark.parametrize("spoil", [("branch", "--unset-upstream"), ("checkout", "-q", "--detach")])
def test_a_clone_without_an_upstream_is_one_sentence(update, student, lecturer, spoil):
    git(student, *spoil)
    change(lecturer, "kernels/argmax.cu", "//", "///")
    done = update()
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "`git switch main`, or `git branch --set-upstream-to=origin/main`" in done.stderr


def test_a_removed_notebook_comes_back(update, student):
    (student / "notebooks" / "42_sums.ipynb").unlink()
    assert update().returncode == 0
    assert (student / "notebooks" / "42_sums.ipynb").is_file()


def test_a_pull_that_cannot_be_is_one_sentence(update, student, lecturer):
    git(student, "commit", "-q", "--allow-empty", "-m", "mine")
    change(lecturer, "kernels/argmax.cu", "//", "///")
    done = update()
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "git pull stopped" in done.stderr and "nothing of yours is lost" in done.stderr


def test_changes_in_the_way_stay(update, student, lecturer):
    mine = student / "kernels" / "argmax.cu"
    mine.write_text("mine")
    change(lecturer, "kernels/argmax.cu", "//", "///")
    done = update()
    assert done.returncode == 2 and "git stash" in done.stderr
    assert mine.read_text() == "mine"


def test_broken_marks_stay_as_they_are_and_are_named(update, student, lecturer):
    file = student / "work" / "ch42_sums" / "sums.cu"
    file.write_text(file.read_text("utf-8").replace("    // EXERCISE-END 42.3\n", ""), "utf-8")
    before = file.read_bytes()
    change(lecturer, "chapters/ch42_sums/sums.cu", "Two kernels, one block a row", "Two kernels, a block a row")
    assert "the region of exercise 42.3 has no EXERCISE-END" in update().stdout
    assert file.read_bytes() == before


def test_an_exercise_that_is_no_more_is_kept_in_the_attic(update, student, lecturer):
    old = (lecturer / "chapters" / "ch42_sums" / "sums.cu").read_text("utf-8")
    change(lecturer, "chapters/ch42_sums/sums.cu", old, "\n".join(x for x in old.split("\n") if "42.2" not in x))
    assert "exercise 42.2 is no more; the old file is" in update().stdout
    assert "my answer" in (student / "work" / ".attic" / "ch42_sums" / "sums.1.cu").read_text("utf-8")


def test_a_folder_without_git(course, tmp_path):
    tree = make_tree(tmp_path / "plain")
    done = course("update", tree=tree, work=tmp_path / "work")
    assert done.returncode == 2 and "this copy of the course is no git clone" in done.stderr
