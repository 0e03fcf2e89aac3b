"""`%%exercise` and whose lines run: what is written into work/, what is refused, what fills the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiny_vllm.course import markers, state
from tiny_vllm.course.chapter import Chapter, Exercise
from tiny_vllm.course.notebook.cells import Way, parse_line, write_cell
from tiny_vllm.course.notebook.lesson import STAND_IN, WORKED, YOURS, Lesson
from tiny_vllm.errors import UserError

FILE = "sum.cu"
WORKED_FILE = """\
// chapters/ch90_sum/sum.cu: the worked solution
extern "C" __global__ void sum(const float* x, float* out, int n) {
    float sum = 0.0f;
    // EXERCISE-BEGIN 90.1 (about 1 line): add the n numbers
    for (int i = 0; i < n; i++) sum += x[i];
    // EXERCISE-END 90.1
    // EXERCISE-BEGIN 90.2 (about 1 line): write the sum
    if (threadIdx.x == 0) {
        out[0] = sum;
    }
    // EXERCISE-END 90.2
}
"""
LINES = "for (int i = n; i-- > 0;) sum += x[i];"


def exercise(id: str) -> Exercise:
    return Exercise(id, "a title", "core", 2, 10, 15, FILE, ("one", "two", "three"), {})


@pytest.fixture
def lesson(tmp_path, device):
    """A chapter of one file, and a work folder with its skeleton."""
    folder = tmp_path / "chapters" / "ch90_sum"
    (folder / "stand_ins").mkdir(parents=True)
    (folder / FILE).write_text(WORKED_FILE)
    (folder / "stand_ins" / "90_1.cu").write_text("// header\nsum = x[0];\n")
    exercises = exercise("90.1"), exercise("90.2")
    chapter = Chapter(
        number=90, name="ch90_sum", folder=folder, title="Sums", needs=(), minutes=10,
        exercises=exercises, questions=(), predictions=(),
    )  # fmt: skip
    made = Lesson(chapter, tmp_path / "work", device)
    made.own(FILE).parent.mkdir(parents=True)
    made.own(FILE).write_text(markers.skeleton(WORKED_FILE, python=False))
    return made


@pytest.fixture
def verdicts(monkeypatch):
    """Which exercises pass, without running anything."""
    passing: set[str] = set()
    monkeypatch.setattr(Lesson, "passes", lambda self, id: bool(self.own_body(id)) and id in passing)
    return passing


def in_file(lesson: Lesson, id: str) -> str:
    return markers.bodies(lesson.own(FILE).read_text())[id]


def test_a_cell_writes_its_lines_between_the_marks(lesson):
    assert write_cell(lesson, "90.1", f"\n{LINES}\n\n") is None
    assert in_file(lesson, "90.1") == f"    {LINES}\n" and in_file(lesson, "90.2") == ""
    assert write_cell(lesson, "90.2", "if (1) {\n    out[0] = 1;\n}") is None
    assert in_file(lesson, "90.2") == "    if (1) {\n        out[0] = 1;\n    }\n"
    filled = markers.fill(lesson.own(FILE).read_text(), markers.bodies(WORKED_FILE))
    assert filled == WORKED_FILE


def test_a_cell_may_change_what_a_cell_wrote(lesson):
    assert write_cell(lesson, "90.1", "sum = 1;") is None
    assert write_cell(lesson, "90.1", "sum = 2;") is None
    assert in_file(lesson, "90.1") == "    sum = 2;\n"


def test_lines_that_changed_in_the_file_are_not_overwritten(lesson):
    write_cell(lesson, "90.1", "sum = 1;")
    edited = lesson.own(FILE).read_text().replace("sum = 1;", "sum = 7;")
    lesson.own(FILE).write_text(edited)
    told = write_cell(lesson, "90.1", "sum = 2;")
    assert told is not None and "sum = 7;" in told and "sum = 2;" in told
    assert "--take-file" in told and "--force" in told
    assert lesson.own(FILE).read_text() == edited
    assert write_cell(lesson, "90.1", "sum = 2;", Way.TAKE_FILE) == "%%exercise 90.1\nsum = 7;\n"
    assert lesson.own(FILE).read_text() == edited
    assert write_cell(lesson, "90.1", "sum = 2;", Way.FORCE) is None
    assert in_file(lesson, "90.1") == "    sum = 2;\n"
    kept = [path.read_text() for path in (lesson.work / ".attic").rglob("*.cu")]
    assert kept == [edited]


def test_the_same_lines_in_file_and_cell_are_no_conflict(lesson):
    """Solved in an editor, then typed into the notebook."""
    text = lesson.own(FILE).read_text()
    lesson.own(FILE).write_text(markers.fill(text, {"90.1": f"    {LINES}\n"}))
    assert write_cell(lesson, "90.1", LINES) is None
    assert write_cell(lesson, "90.1", "sum = 2;") is None


def test_an_empty_cell_leaves_an_unsolved_region_alone_and_never_clears_a_solved_one(lesson):
    before = lesson.own(FILE).read_text()
    assert write_cell(lesson, "90.1", "// your lines\n") is None
    assert lesson.own(FILE).read_text() == before
    lesson.own(FILE).write_text(markers.fill(before, {"90.1": f"    {LINES}\n"}))
    told = write_cell(lesson, "90.1", "// your lines\n")
    assert told is not None and LINES in told and in_file(lesson, "90.1") == f"    {LINES}\n"


def test_windows_line_ends_are_no_change(lesson):
    write_cell(lesson, "90.1", LINES)
    lesson.own(FILE).write_bytes(lesson.own(FILE).read_bytes().replace(b"\n", b"\r\n"))
    assert write_cell(lesson, "90.1", "sum = 3;") is None


def test_what_stands_behind_the_magic():
    assert parse_line("3.2") == ("3.2", Way.ASK)
    assert parse_line(" 3.2  --force ") == ("3.2", Way.FORCE)
    for wrong in ("", "3.2 --forced", "3.2 --force --take-file"):
        with pytest.raises(UserError, match="give an exercise and at most one of --take-file, --force"):
            parse_line(wrong)


def test_a_file_without_marks_names_the_way_out(lesson):
    lesson.own(FILE).write_text("// nothing\n")
    with pytest.raises(UserError, match=r"no marks of exercise 90\.1"):
        write_cell(lesson, "90.1", LINES)


def test_state_keeps_what_else_is_in_it(lesson):
    state.State(lesson.work, predictions={"90.a": 3}).save()
    write_cell(lesson, "90.1", LINES)
    assert state.load(lesson.work).predictions == {"90.a": 3}


def test_whose_lines_fill_a_file(lesson, verdicts):
    assert lesson.filled(FILE).text == WORKED_FILE
    assert lesson.filled(FILE).owners == {"90.1": WORKED, "90.2": WORKED}
    write_cell(lesson, "90.1", LINES)
    assert lesson.filled(FILE).owners["90.1"] == WORKED, "it does not pass"
    assert lesson.filled(FILE, only_passing=False).owners["90.1"] == YOURS
    verdicts.add("90.1")
    assert lesson.filled(FILE).owners == {"90.1": YOURS, "90.2": WORKED}
    assert LINES in lesson.filled(FILE).text
    assert (lesson.write_filled() / "ch90_sum" / FILE).read_text() == lesson.filled(FILE).text


def test_a_release_has_stand_ins(lesson, verdicts):
    ours = lesson.chapter.folder / FILE
    ours.write_text(markers.skeleton(WORKED_FILE, python=False))
    filled = lesson.filled(FILE)
    assert filled.owners == {"90.1": STAND_IN, "90.2": STAND_IN}
    assert markers.bodies(filled.text) == {"90.1": "    sum = x[0];\n", "90.2": ""}


def test_the_text_for_a_launch(lesson, verdicts):
    write_cell(lesson, "90.1", LINES)
    code, owners = lesson.cuda(FILE, only_passing=False)
    assert code.startswith('#line 1 "work/ch90_sum/sum.cu"') and LINES in code and owners["90.1"] == YOURS
    (lesson.chapter.folder / "demo.cu").write_text("__global__ void demo() { }\n")
    assert lesson.cuda("demo.cu")[0].startswith('#line 1 "chapters/ch90_sum/demo.cu"')
    code, _ = lesson.cuda(FILE)
    out, x = lesson.device.asarray(np.zeros(1, np.float32)), lesson.device.asarray(np.arange(5, dtype=np.float32))
    lesson.device.RawKernel(code, "sum")((1,), (4,), (x, out, 5))
    assert lesson.device.to_host(out).tolist() == [10]


def test_a_file_that_is_not_started_yet_is_our_skeleton(lesson):
    lesson.own(FILE).unlink()
    assert lesson.own_text(FILE) == markers.skeleton(WORKED_FILE, python=False)
    assert lesson.own_body("90.1") == "" and not lesson.passes("90.1")
    assert isinstance(lesson.own(FILE), Path)
