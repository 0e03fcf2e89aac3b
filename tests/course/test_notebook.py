"""What the notebook's functions print, on chapter 03 and an empty work folder."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from chapters._figures import Figure
from tiny_vllm.course import markers, notebook
from tiny_vllm.course.chapter import chapter as read_chapter
from tiny_vllm.course.notebook.current import CURRENT, Current
from tiny_vllm.course.notebook.lesson import Lesson
from tiny_vllm.errors import UserError

CHAPTER = read_chapter(3)
TREE = markers.bodies((CHAPTER.folder / "rms_norm.cu").read_text())["3.3"]


@pytest.fixture
def work(tmp_path, monkeypatch, device, capsys):
    """Chapter 03 opened in a folder that did not exist."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setenv("TINY_VLLM_WORK", str(folder))
    monkeypatch.setenv("TINY_VLLM_DEVICE", device.name)
    monkeypatch.setattr(CURRENT, "opened", None)
    notebook.chapter(3)
    printed = capsys.readouterr().out
    assert printed.startswith("chapter 3: RMSNorm") and "your files: work/ch03_rms_norm/" in printed
    return folder


@pytest.fixture
def verdicts(monkeypatch):
    passing: set[str] = set()
    monkeypatch.setattr(Lesson, "passes", lambda self, id: bool(self.own_body(id)) and id in passing)
    return passing


def test_everything_that_a_lesson_calls_is_there():
    wanted = "answer chapter check compare launch mine predict show smollm2 source swap trace"
    assert notebook.__all__ == wanted.split()
    assert all(getattr(notebook, name).__doc__ for name in notebook.__all__)


def test_opening_a_chapter_writes_skeletons_and_keeps_what_is_there(work, capsys):
    file = work / "ch03_rms_norm" / "rms_norm.cu"
    assert not any(each.solved for each in markers.regions(file.read_text()))
    file.write_text(markers.fill(file.read_text(), {"3.3": TREE}))
    notebook.chapter(3)
    assert markers.bodies(file.read_text())["3.3"] == TREE


def test_without_a_chapter_the_first_cell_is_named():
    with pytest.raises(UserError, match=r"no chapter is open; run the first cell, such as chapter\(3\)"):
        _ = Current().lesson


def test_an_exercise_of_another_chapter_is_refused(work):
    with pytest.raises(UserError, match=r"4\.1 is not of chapter 3"):
        notebook.check("4.1")


def test_a_prediction_is_kept_and_compared(work, capsys):
    notebook.predict("3.a", "How large?", mine=...)
    notebook.compare("3.a", 3)
    notebook.predict("3.a", "How large?", mine=4)
    notebook.compare("3.a", 3)
    notebook.predict("3.a", "How large?")
    assert capsys.readouterr().out.splitlines() == [
        "3.a  How large?",
        "     your prediction: none yet; type it at mine=",
        "3.a: it is 3",
        "3.a  How large?",
        "     your prediction: 4",
        "3.a: you said 4, it is 3",
        "3.a  How large?",
        "     your prediction: 4",
    ]


def test_an_unsolved_exercise_is_told_and_raises_nothing(work, capsys):
    notebook.exercise("3.1", "# your lines\n")
    notebook.answer("3.4", line=..., kind=..., repair=...)
    told, unanswered = capsys.readouterr().out.split("\nexercise 3.4")
    assert told.startswith("exercise 3.1  not solved yet") and "next: tiny-vllm course hint 3.1" in told
    assert unanswered.startswith(": not answered yet")


def test_a_solved_exercise_passes_and_is_mine(work, capsys, rng):
    notebook.exercise("3.1", "y[:] = x\n")
    notebook.mine("3.1")
    told = capsys.readouterr().out
    assert told.startswith("exercise 3.1  FAILED") and told.endswith("rms_norm of exercise 3.1: the worked one\n")
    worked = markers.bodies((CHAPTER.folder / "formula.py").read_text())["3.1"]
    notebook.exercise("3.1", worked)
    assert capsys.readouterr().out == "3.1: passed\n"
    norm = notebook.mine("3.1")
    assert capsys.readouterr().out == "rms_norm of exercise 3.1: yours\n"
    x, weight = rng.standard_normal((3, 10), np.float32), rng.standard_normal(10, np.float32)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(norm(x, weight, 1e-5), expected, rtol=1e-5)


def test_an_unsolved_op_is_the_worked_one(work, capsys, verdicts, rng):
    norm = notebook.mine("3.3")
    assert capsys.readouterr().out == "rms_norm of exercise 3.3: the worked one\n"
    x, weight = rng.standard_normal((2, 33), np.float32), np.ones(33, np.float32)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm(x, weight, 1e-5, threads=32), expected, rtol=1e-5)
    with pytest.raises(UserError, match=r"exercise 3\.2 is no operation of the model; these are: 3\.1"):
        notebook.mine("3.2")


def test_in_a_release_numpy_stands_in(work, capsys, verdicts, monkeypatch, rng):
    monkeypatch.setattr(
        "tiny_vllm.course.notebook.lesson._solved", lambda text: {}
    )  # no answer in the tree, none of the reader
    norm = notebook.mine("3.3")
    assert capsys.readouterr().out == "rms_norm of exercise 3.3: NumPy's\n"
    x = np.array([[1, -1, 5, 3]], np.float32)
    np.testing.assert_allclose(norm(x, np.ones(4, np.float32), 0.0), x / 3, rtol=1e-6)


def test_source_shows_the_readers_lines_and_never_the_answer(work, capsys):
    notebook.source("rms_norm.cu", "tree")
    empty = capsys.readouterr().out
    assert "EXERCISE-BEGIN 3.3" in empty and TREE.strip() not in empty
    assert empty.count("\n") == len(empty.splitlines()) and "rms_norm_warp" not in empty
    file = work / "ch03_rms_norm" / "rms_norm.cu"
    file.write_text(markers.fill(file.read_text(), {"3.3": "    my_own_line();\n"}))
    notebook.source("rms_norm.cu", "tree")
    assert "    my_own_line();\n" in capsys.readouterr().out
    notebook.source("rms_norm.cu", "tree", empty=True)
    assert capsys.readouterr().out == empty


def test_source_shows_a_diff_and_python(work, capsys):
    notebook.source("rms_norm.cu", "warp", diff_from="tree", empty=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["--- tree", "+++ warp"]
    assert any(line.startswith("+    float sum = warp_sum(") for line in lines)
    notebook.source("stage.py", "RMSNormOps")
    assert capsys.readouterr().out.startswith("class RMSNormOps")
    with pytest.raises(UserError, match="no function or class 'nothing'"):
        notebook.source("stage.py", "nothing")


def test_a_launch_prints_what_check_mode_finds(work, capsys):
    values, result = np.arange(1, 129, dtype=np.float32), np.full(1, np.nan, np.float32)
    run = notebook.launch("faults/shared_sum.cu", "shared_sum", 1, 128, [values, result], device="emulator")
    assert run["result"] == 8256 and [finding.kind for finding in run.findings] == ["race"]
    assert capsys.readouterr().out.startswith("chapters/ch03_rms_norm/faults/shared_sum.cu:")


def test_a_launch_and_a_trace_run_the_readers_lines(work, capsys, verdicts):
    file = work / "ch03_rms_norm" / "rms_norm.cu"
    only_once = TREE.replace("distance > 0;", "distance > 1;")
    assert only_once != TREE
    file.write_text(markers.fill(file.read_text(), {"3.3": only_once}))
    x = np.array([[1, -1, 5, 3, 2, 0, 4, -4]], np.float32)
    args = [x, np.ones(8, np.float32), np.full((1, 8), np.nan, np.float32), 8, 0.0]
    ours = notebook.trace("rms_norm.cu", "rms_norm_tree", "partial", 1, 8, args)
    assert ours is not None and ours[:, 0].tolist() == [1, 5, 46, 72], "they do not pass: the worked ones run"
    verdicts.add("3.3")
    mine = notebook.trace("rms_norm.cu", "rms_norm_tree", "partial", 1, 8, args)
    assert mine is not None and mine[:, 0].tolist() == [1, 5, 46]
    verdicts.clear()
    y = notebook.launch("rms_norm.cu", "rms_norm_tree", 1, 8, args, check=False)["out"]
    np.testing.assert_allclose(y, x / np.sqrt(46 / 8), rtol=1e-6, err_msg="a launch shows them as they are")


def test_in_a_release_an_unsolved_kernel_has_no_trace(work, capsys, verdicts, monkeypatch):
    """Not a table of one barrier, and no error that would end a run of all cells."""
    monkeypatch.setattr("tiny_vllm.course.notebook.lesson._solved", lambda text: {})
    args = [np.ones((1, 8), np.float32), np.ones(8, np.float32), np.full((1, 8), np.nan, np.float32), 8, 0.0]
    assert notebook.trace("rms_norm.cu", "rms_norm_tree", "partial", 1, 8, args) is None
    assert notebook.trace("rms_norm.cu", "rms_norm_warp", "partial", 1, 32, args) is None
    assert capsys.readouterr().out.splitlines() == [
        "solve 3.3 first: there is nothing in rms_norm_tree to trace yet",
        "solve 3.5 first: there is nothing in rms_norm_warp to trace yet",
    ]


def test_a_figure_is_a_picture_with_words(work, capsys, monkeypatch, tmp_path):
    shown = []
    display = pytest.importorskip("IPython.display", reason="the notebooks extra is not installed")
    monkeypatch.setattr(display, "display", lambda data, **settings: shown.append((data, settings)))
    monkeypatch.setenv("TINY_VLLM_FIGURES", str(tmp_path / "figures"))
    notebook.show(Figure("line", "a line that rises", "it ends at 2", lambda axes: axes.plot([0, 1, 2])))
    assert capsys.readouterr().out == "it ends at 2\n"
    ((data, settings),) = shown
    assert data["text/plain"] == "a line that rises" and data["image/png"].startswith(b"\x89PNG")
    assert settings["metadata"] == {"image/png": {"alt": "a line that rises"}}
    assert (tmp_path / "figures" / "line.svg").is_file()


def test_an_answer_is_kept_and_judged(work, capsys, monkeypatch):
    asked = []

    def judge(chapter, *answer, **more):
        asked.append((chapter.number, *answer, more))
        return SimpleNamespace(exercise="3.4", passed=True, solved=True, score=10, max=10)

    monkeypatch.setattr(notebook, "check_answer", judge)
    notebook.answer("3.4", line=7, kind="race", repair="a();", repair_after=True)
    assert asked == [(3, "3.4", 7, "race", "a();", {"repair_after": True})]
    kept = json.loads((work / ".course.json").read_text())["answers"]["3.4"]
    assert kept == {"line": 7, "kind": "race", "repair": "a();", "repair_after": True}
    assert capsys.readouterr().out == "3.4: passed\n"
    with pytest.raises(UserError, match="line is a number such as 12"):
        notebook.answer("3.4", line="7", kind="race", repair="a();")
