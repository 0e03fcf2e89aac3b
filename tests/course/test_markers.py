"""Marks of exercises: regions, skeletons, files filled in again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tiny_vllm.course import markers
from tiny_vllm.errors import UserError

CUDA = """// a kernel
__global__ void f(float* y) {
    float sum = 0;
    // EXERCISE-BEGIN 3.2 (about 2 lines): add up
    for (int i = 0; i < 3; i++)
        sum += i;
    // EXERCISE-END 3.2
    y[0] = sum;
    // EXERCISE-BEGIN 3.3 (about 1 line): write
    y[1] = sum;
    // EXERCISE-END 3.3
}
"""
PYTHON = """def f():
    # EXERCISE-BEGIN 3.1 (about 1 line): return three
    return 3
    # EXERCISE-END 3.1
"""
ROOT = Path(__file__).resolve().parents[2]
MARKED = [p for p in sorted((ROOT / "chapters").glob("ch*/*")) if p.suffix in (".cu", ".py")]
MARKED = [p for p in MARKED if "EXERCISE-BEGIN" in p.read_text(encoding="utf-8")]


def test_a_region():
    first, second = markers.regions(CUDA)
    assert (first.id, first.about, first.task) == ("3.2", "about 2 lines", "add up")
    assert (first.begin, first.end, first.indent) == (4, 7, "    ")
    assert first.body == "    for (int i = 0; i < 3; i++)\n        sum += i;\n"
    assert (second.id, second.body) == ("3.3", "    y[1] = sum;\n")


def test_a_skeleton_keeps_both_marks():
    lines = markers.skeleton(CUDA, python=False).splitlines()
    assert lines[3:5] == [
        "    // EXERCISE-BEGIN 3.2 (about 2 lines): add up",
        "    // EXERCISE-END 3.2",
    ]
    assert "sum += i" not in "\n".join(lines) and "y[1]" not in "\n".join(lines)


def test_a_python_skeleton_names_its_exercise():
    text = markers.skeleton(PYTHON, python=True)
    functions: dict = {}
    exec(text, functions)
    with pytest.raises(NotImplementedError, match=r"exercise 3\.1 is not solved yet"):
        functions["f"]()


@pytest.mark.parametrize("file", MARKED, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_filled_again_it_is_the_worked_file_byte_for_byte(file):
    text = file.read_bytes().decode()
    empty = markers.skeleton(text, file.suffix == ".py")
    assert empty != text
    assert markers.skeleton(empty, file.suffix == ".py") == empty
    assert markers.fill(empty, markers.bodies(text)) == text
    assert not any(region.solved for region in markers.regions(empty))
    assert all(region.solved for region in markers.regions(text))


@pytest.mark.parametrize("id", ["3.2", "3.3"])
@pytest.mark.parametrize("mark", ["BEGIN", "END"])
def test_where_marks_are_broken_the_other_regions_can_be_read(id, mark):
    broken = "\n".join(line for line in CUDA.split("\n") if f"EXERCISE-{mark} {id}" not in line)
    left = [region.id for region in markers.regions(CUDA) if region.id != id]
    assert list(markers.solved(broken, strict=False)) == left
    with pytest.raises(UserError, match=rf"`tiny-vllm course reset {re.escape(id)}` does"):
        markers.regions(broken)


def test_what_stands_outside():
    empty = markers.skeleton(CUDA, python=False)
    assert [line for _, line in markers.outside(CUDA)] == [line for _, line in markers.outside(empty)]
    assert markers.outside(CUDA.replace("\n", " \r\n") + "\n\n") == markers.outside(CUDA)
    numbers = dict(markers.outside(CUDA))
    assert numbers[8] == "    y[0] = sum;" and numbers[7].endswith("EXERCISE-END 3.2") and 6 not in numbers


def test_regions_not_named_stay():
    text = markers.fill(CUDA, {"3.3": "    y[1] = 2;\n"})
    assert "sum += i" in text and "y[1] = 2;" in text and "y[1] = sum" not in text


@pytest.mark.parametrize(
    "change", [lambda t: t.replace("\n", "\r\n"), lambda t: t.replace("\n", "\r"), lambda t: t[:-1]]
)
def test_line_ends_are_made_one(change):
    assert markers.fill(change(CUDA), {}) == CUDA
    assert markers.bodies(change(CUDA)) == markers.bodies(CUDA)
    assert markers.skeleton(change(CUDA), python=False) == markers.skeleton(CUDA, python=False)


def test_a_body_without_a_last_line_end_does_not_swallow_the_mark():
    assert [r.id for r in markers.regions(markers.fill(CUDA, {"3.2": "    sum = 3;", "3.3": ""}))] == ["3.2", "3.3"]


@pytest.mark.parametrize(
    "body, solved",
    [
        ("", False),
        ("\n   \n", False),
        ("    // my thoughts\n    /* and\n more */\n", False),
        ("    # thoughts\n", False),
        ('    raise NotImplementedError("exercise 3.1 is not solved yet")\n', False),
        ("    sum = 1;  // done\n", True),
        ("    return 3\n", True),
        (
            '    raise NotImplementedError("exercise 3.1 is not solved yet; put your lines in place of this one")\n',
            False,
        ),
        ('    raise NotImplementedError("mine")\n', True),
    ],
)
def test_whether_something_was_written(body, solved):
    assert markers.regions(markers.fill(CUDA, {"3.2": body}))[0].solved is solved


@pytest.mark.parametrize(
    "old, new, line, fault",
    [
        ("    // EXERCISE-END 3.2\n", "", 8, "exercise 3.3 begins inside the region of exercise 3.2"),
        ("    // EXERCISE-END 3.3\n", "", 9, "the region of exercise 3.3 has no EXERCISE-END"),
        ("    // EXERCISE-BEGIN 3.3 (about 1 line): write\n", "", 10, "exercise 3.3 ends without a beginning"),
        ("EXERCISE-END 3.2", "EXERCISE-END 3.9", 7, "exercise 3.9 ends inside the region of exercise 3.2"),
        ("3.3 (about 1 line)", "3.2 (about 1 line)", 9, "exercise 3.2 begins a second time"),
        ("(about 2 lines)", "(some lines)", 4, "the mark .* is broken"),
        ("    // EXERCISE-END 3.2", "    sum++; // EXERCISE-END 3.2", 7, "the mark .* is broken"),
    ],
)
def test_marks_that_are_wrong_are_named_by_file_and_line(old, new, line, fault):
    assert old in CUDA
    with pytest.raises(UserError, match=rf"rms\.cu, line {line}: {fault}"):
        markers.regions(CUDA.replace(old, new), "rms.cu")
