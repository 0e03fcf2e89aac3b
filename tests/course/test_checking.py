"""What a check says of right, wrong, unsolved, racing, crashing and endless answers; all of it in a child process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tiny_vllm.course import failure
from tiny_vllm.course.checking import check_exercise, task_of
from tiny_vllm.course.failure import report
from tiny_vllm.errors import UserError
from tiny_vllm.sandbox.runs import Limits

ALL = {"basic": True, "tails": True, "numbers": True, "limits": True}
NONE = dict.fromkeys(ALL, False)


@pytest.fixture
def check(small, tree, work):
    def run(exercise, orders=("forward",), **settings):
        implementation = settings.pop("implementation", work)
        return check_exercise(small, exercise, implementation, tree=tree, orders=orders, **settings)

    return run


@pytest.mark.parametrize("exercise, points", [("42.1", 5), ("42.2", 10), ("42.3", 10)])
def test_the_worked_solution_passes(check, small, exercise, points):
    outcome = check(exercise, ("forward", "reverse"), implementation=small.folder.parent)
    assert outcome.passed and outcome.solved and all(outcome.groups.values()) and outcome.first_failure is None
    assert (outcome.score, outcome.max, outcome.findings) == (points, points, ())
    how = "2 cases)" if exercise == "42.1" else "emulator; "
    assert report(outcome).startswith(
        f"exercise {exercise}  passed  {outcome.name}  {points} of {points} points  ({how}"
    )


@pytest.mark.parametrize("exercise", ["42.1", "42.2", "42.3"])
def test_an_unsolved_one_fails_in_every_group(check, exercise):
    outcome = check(exercise)
    assert not outcome.solved and not outcome.passed and outcome.score == 0
    assert not any(outcome.groups.values())
    first, second = report(outcome).splitlines()
    where = "" if exercise == "42.1" else "  (emulator)"
    assert first == f"exercise {exercise}  not solved yet  {outcome.name} [rows=2 columns=64 threads=64]{where}"
    assert second.endswith(f"next: tiny-vllm course hint {exercise}") and "got " in second


def test_an_unsolved_one_by_its_words(check):
    assert "  y[0, 0]: got nan, expected " in report(check("42.2"))
    assert "   (128 of 128 never written)      next: tiny-vllm course hint 42.2" in report(check("42.2"))


def test_another_way_passes_and_the_other_exercise_may_be_empty(check, write):
    write("42.3", "    for (int t = 1; t < blockDim.x; t++)\n        if (threadIdx.x == 0) partial[0] += partial[t];\n")
    assert check("42.3").passed
    assert not check("42.2").solved


def test_a_tail_left_out(check, write):
    write("42.2", "    if (threadIdx.x < columns) y[threadIdx.x] = factor * x[threadIdx.x] + 1;\n")
    outcome = check("42.2")
    assert outcome.groups == {"basic": True, "tails": False, "numbers": True, "limits": False}
    assert outcome.score == 5  # 6 of 10 by the groups, but elements were never written
    lines = report(outcome).splitlines()
    assert lines[0] == "exercise 42.2  FAILED  scale_rows [rows=3 columns=33 threads=32]  (emulator)"
    assert lines[1].startswith("  first mismatch y[0, 32]: got nan, expected ")
    assert lines[1].endswith("   (3 of 99 wrong: column 32 of every row)")
    assert lines[2] == "  never written: 3 elements      out of bounds: 0      races: 0"
    assert lines[3] == "  next: tiny-vllm course hint 42.2"


def test_wrong_only_for_small_numbers(check, write):
    write("42.2", "    for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = factor * x[c] + 1.001f;\n")
    assert check("42.2").groups == NONE
    write(
        "42.2",
        "    for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = columns == 7 ? 0 : factor * x[c] + 1;\n",
    )
    outcome = check("42.2")
    assert outcome.groups == {**ALL, "numbers": False} and outcome.score == 8


def test_right_values_with_a_race_get_half(check, write):
    write("42.3", "    if (threadIdx.x) atomicAdd(&partial[0], 0.0f);\n" + TREE.replace("__syncthreads();", ""))
    outcome = check("42.3")
    assert outcome.score <= 5 and not outcome.passed
    assert {found.kind for found in outcome.findings} == {"race"}
    assert all(found.file == "work/ch42_sums/sums.cu" for found in outcome.findings)


TREE = """    for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
        if (threadIdx.x < stride) partial[threadIdx.x] += partial[threadIdx.x + stride];
        __syncthreads();
    }
"""


def test_a_racing_sum_that_is_right_on_the_emulator(check, write, work):
    """One thread after another adds to partial[0]: right in both orders, and a race all the same."""
    write("42.2", "// two\n// lines\n")
    write("42.3", "    if (threadIdx.x > 0) partial[0] += partial[threadIdx.x];\n    __syncthreads();\n")
    outcome = check("42.3", ("forward", "reverse"))
    assert outcome.groups == ALL and outcome.solved and not outcome.passed and outcome.score == 5
    text = report(outcome)
    assert "  values: right in this case\n  never written: 0 elements      out of bounds: 0      races: 1\n" in text
    line = (
        (work / "ch42_sums" / "sums.cu")
        .read_text()
        .splitlines()
        .index("    if (threadIdx.x > 0) partial[0] += partial[threadIdx.x];")
    )
    assert f"  work/ch42_sums/sums.cu:{line + 1}: race: " in text


def test_right_in_one_order_of_threads_only(check, write):
    """Each thread adds what the one before it has, without a barrier: the sum if they come one after another."""
    write(
        "42.3",
        """    if (threadIdx.x > 0) partial[threadIdx.x] += partial[threadIdx.x - 1];
    __syncthreads();
    if (threadIdx.x == 0) partial[0] = partial[blockDim.x - 1];
""",
    )
    assert check("42.3", ("forward",)).groups == ALL
    outcome = check("42.3", ("reverse",))
    assert outcome.groups == NONE
    assert "  (emulator, reverse thread order)\n  first mismatch total[0]: got " in report(outcome)
    assert check("42.3", ("forward", "reverse")).groups == NONE


def test_numpy_has_no_threads_and_no_device(check, write):
    write("42.1", "    y = 2 * x + 1\n")
    outcome = check("42.1", ("forward", "reverse"))
    text = report(outcome)
    assert outcome.orders == ("forward",) and "  FAILED  double [rows=2 columns=64 threads=64]\n" in text
    assert "\n  never written: 0 elements\n" in text
    assert not any(word in text for word in ("emulator", "out of bounds", "race", "order"))


def test_a_cause_stands_before_the_race_that_follows_from_it(check, write):
    write("42.3", TREE.replace("{\n        if", "{\n        if (threadIdx.x < stride) __syncthreads();\n        if"))
    outcome = check("42.3")
    kinds = [line.split(": ")[1] for line in report(outcome).splitlines() if "sums.cu:" in line]
    assert "barrier" in kinds and kinds == sorted(kinds)
    many = tuple(replace(outcome.findings[0], kind=kind, text=kind) for kind in ("race", "out of bounds", "barrier"))
    first = replace(outcome.first_failure, findings=many)
    shown = report(replace(outcome, first_failure=first)).splitlines()
    assert [line.strip() for line in shown[-4:-1]] == ["barrier", "out of bounds", "race"]


def test_the_axes_have_the_names_of_the_task():
    wrong = np.zeros((2, 3))
    wrong[:, 1] = 1
    by_thread = failure.mismatch("sums", wrong, np.zeros((2, 3)), 0, 0, ("row", "thread"))
    by_row = failure.mismatch("y", wrong.T, np.zeros((3, 2)), 0, 0)
    assert by_thread and by_thread.pattern == "thread 1 of every row"
    assert by_row and by_row.pattern == "row 1"


def test_out_of_bounds(check, write):
    write("42.2", "    for (int c = threadIdx.x; c <= columns; c += blockDim.x) y[c] = factor * x[c] + 1;\n")
    text = report(check("42.2"))
    assert "      out of bounds: 2      races: " in text or "      out of bounds: 1      races: " in text
    assert "sums.cu:12: out of bounds: " in text


def test_a_compiler_s_error_names_the_student_s_line(check, write, work):
    write("42.2", "    y[0] = 1;\n    y[1] = colums;\n")
    text = report(check("42.2"))
    assert "work/ch42_sums/sums.cu:13:" in text and "colums" in text
    write("42.2", "\n\n\n    y[0] = 1;\n")
    write("42.3", "    partial[0] = sun;\n")
    line = (work / "ch42_sums" / "sums.cu").read_text().splitlines().index("    partial[0] = sun;") + 1
    assert f"work/ch42_sums/sums.cu:{line}:" in report(check("42.3"))


@pytest.mark.parametrize(
    "wrong, error",
    [
        ("    y = x * zz\n", "NameError: name 'zz' is not defined"),
        ("      y = 2 * x\n", "IndentationError: unexpected indent"),
        ("    y = (2 * x\n", "SyntaxError: '(' was never closed"),
    ],
)
def test_an_error_in_python_names_the_line_of_the_student_s_own_file(check, write, work, wrong, error):
    """Lines of their own above the region, which do not run, are counted too."""
    write("42.1", f"    z = 1\n{wrong}")
    file = work / "ch42_sums" / "warm_up.py"
    file.write_text("# mine\n# mine\n" + file.read_text("utf-8"), "utf-8")
    line = file.read_text("utf-8").splitlines().index(wrong.rstrip()) + 1
    outcome = check("42.1")
    place = f"(work/ch42_sums/warm_up.py, line {line}: {wrong.strip()})"
    assert f"  {error} {place}\n" in report(outcome) and outcome.score == 0


@pytest.mark.parametrize(
    "body, given",
    [
        ("    return\n", "None"),
        ("    y = None\n", "None"),
        ("    y = x[:1]\n", "an array of float32 of shape (1, 64)"),
        ("    y = [1, 2]\n", "of type list"),
        ("    y = np.full(x.shape, 'a')\n", "an array of <U1 of shape (2, 64)"),
    ],
)
def test_an_output_that_nothing_fits_is_named(check, write, body, given):
    write("42.1", body)
    said = "  y must come out as an array of numbers of shape (2, 64), but is {}; fill all of it in your lines ({})\n"
    assert said.format(given, "work/ch42_sums/warm_up.py") in report(check("42.1"))


def test_what_python_prints_is_shown_and_does_no_harm(check, write):
    write("42.1", "    print('hello', x.shape)\n    y = x\n")
    assert "  printed: hello (2, 64)" in report(check("42.1"))


@pytest.mark.parametrize(
    "body, words",
    [
        ("    import os; os._exit(3)\n", "the process that ran it ended with exit code 3"),
        ("    import os; os.kill(os.getpid(), 11)\n", "ended by SIGSEGV"),
        ("    raise SystemExit('bye')\n", "bye"),
        ("    y = x[:, :3]\n", "y must come out as an array of numbers of shape"),
        ("    import os; os.close(1); os.close(0); y = 2 * x; y[0] = 7\n", "first mismatch y[0, 0]: got 7"),
        ("    return (\n", "SyntaxError"),
    ],
)
def test_it_may_die_in_any_way(check, write, body, words):
    write("42.1", body)
    outcome = check("42.1")
    assert not outcome.passed and outcome.score == 0
    assert words in report(outcome)


def test_an_endless_loop_ends(check, write):
    write("42.1", "    while True: pass\n")
    text = report(check("42.1", limits=Limits(seconds=3)))
    assert "no answer after 3 s; is there an endless loop?" in text
    write("42.2", "    for (int c = threadIdx.x; c < columns; c += 0) y[c] = 0;\n")
    outcome = check("42.2", limits=Limits(launch_seconds=1))
    assert outcome.groups == NONE and "endless loop: " in report(outcome)


def test_a_twist_fails_the_public_answer(check, write):
    write("42.2", "worked")
    assert check("42.2", twist=1).groups == NONE
    write("42.2", "    for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = factor * x[c] + 2;\n")
    assert check("42.2", twist=1).passed and not check("42.2").passed
    with pytest.raises(UserError, match=r"exercise 42\.2 has no twist 7; it has 1"):
        check("42.2", twist=7)


def test_secret_cases_find_who_knows_the_public_ones(check, write):
    known = "columns == 64 || columns == 33 || columns == 7 || columns == 1000"
    body = f"    if ({known})\n    for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = factor * x[c] + 1;\n"
    write("42.2", body)
    assert check("42.2").passed
    outcome = check("42.2", seed=1)
    assert outcome.groups == NONE and outcome.num_cases == 16
    assert report(outcome) == report(check("42.2", seed=1)) != report(check("42.2", seed=2))


def test_values_only(check, write):
    """As on a GPU, where check mode is not: by an outcome whose device is another."""
    write("42.2", "    if (threadIdx.x == 0) y[0] = 0;\n")
    outcome = replace(check("42.2"), device="cuda")
    assert "  values only: races and accesses outside an array show on the emulator" in report(outcome)
    assert "never written" not in report(outcome)
    assert "values only" in report(replace(outcome, passed=True))


def test_an_empty_region_that_needs_nothing_is_not_solved(check, write):
    """Values that are right without a line of yours earn nothing."""
    write("42.2", "worked")
    outcome = replace(check("42.2"), passed=False, solved=False, score=0)
    assert report(outcome) == "exercise 42.2  not solved yet  scale_rows: the values are right without your lines"


def test_what_cannot_be_checked_is_said(check, small, work):
    with pytest.raises(UserError, match=r"exercise 42\.4 has no region: answer it with the fault's line"):
        check("42.4")
    with pytest.raises(UserError, match=r"there is no exercise 42\.9; chapter 42 has 42\.1"):
        check("42.9")
    (work / "ch42_sums" / "sums.cu").unlink()
    with pytest.raises(UserError, match=r"there is no work/ch42_sums/sums\.cu; `tiny-vllm course start 42` writes it"):
        check("42.2")
    assert task_of(small, "42.1").name == "double"


def test_a_long_line_is_cut_and_one_case_is_no_plural(check, write):
    write("42.1", "    raise ValueError('x' * 100_000)\n")
    assert len(report(check("42.1"))) < 2000
    outcome = check("42.1")
    assert "(1 case)" in report(replace(outcome, passed=True, num_cases=1))
