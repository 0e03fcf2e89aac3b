"""`tiny-vllm course ...` as a student types it, in a process of its own; and what it says of a student's mistakes."""

from __future__ import annotations

import json
import os
import threading

import pytest

from tiny_vllm.course import markers
from tiny_vllm.course.commands import check
from tiny_vllm.course.faults import KINDS
from tiny_vllm.course.state import changing, load
from tiny_vllm.device.cupy_setup import why_no_cuda
from tiny_vllm.device.emulator.check import words

TAIL = "    if (threadIdx.x < columns) y[threadIdx.x] = factor * x[threadIdx.x] + 1;\n"
RIGHT = "    for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = factor * x[c] + 1;\n"
REPAIR = "    if (threadIdx.x == 0) result[0] = best[0];"


def mistake(done) -> str:
    """The one sentence of a mistake."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("tiny-vllm: error: ") and len(done.stderr.splitlines()) == 1
    return done.stderr.removeprefix("tiny-vllm: error: ").strip()


def test_from_start_to_diff(course, small, tmp_path):
    """The whole way of a student, in an empty folder."""
    work = tmp_path / "mine"
    listed = course("list", work=work).stdout
    assert "42  Sums: a chapter for tests\n    4 exercises, 35 points, about 30 minutes, after 2\n" in listed
    started = course("start", "42", work=work)
    assert started.returncode == 0, started.stderr
    assert "wrote mine/ch42_sums/sums.cu\n" in started.stdout and "wrote mine/ch42_sums/warm_up.py\n" in started.stdout
    file = work / "ch42_sums" / "sums.cu"
    assert file.read_text("utf-8").startswith("// work/ch42_sums/sums.cu: your answers of chapter 42. The engine ")
    unsolved = course("check", "42.2", work=work)
    assert unsolved.returncode == 1 and unsolved.stdout.startswith("exercise 42.2  not solved yet  scale_rows [rows=2 ")
    assert "exercise 42.2, hint 1 of 3: Which columns are yours?" in course("hint", "42.2", work=work).stdout
    refused = mistake(course("diff", "42.2", work=work))
    assert refused.startswith("exercise 42.2 is not solved yet: `tiny-vllm course hint 42.2` helps; --give-up")
    file.write_text(markers.fill(file.read_text("utf-8"), {"42.2": RIGHT}), "utf-8")
    passed = course("check", "42.2", work=work)
    assert passed.returncode == 0 and passed.stdout == (
        "exercise 42.2  passed  scale_rows  10 of 10 points  (emulator; 4 cases, forward and reverse order)\n"
        "  exercise 42.3 is not solved yet: a stand-in ran in its place\n"
    )
    shown = course("diff", "42.2", work=work).stdout
    assert f"-{RIGHT}" in shown and "+        y[c] = factor * x[c] + 1;" in shown.replace("{ y[c]", "\n+        y[c]")
    status = course("status", work=work).stdout.splitlines()
    assert status[2].split() == ["42.2", "core", "10", "of", "10", "passed", "1", "hint"]
    assert status[1].split() == ["42.1", "warm-up", "0", "of", "5", "not", "checked", "yet"]
    assert status[-1] == "points in the chapters started: 10 of 35"
    file.write_text(file.read_text("utf-8").replace(RIGHT, TAIL), "utf-8")
    assert "changed since its check" in course("status", work=work).stdout


def test_a_failure_word_for_word(in_a_process, work, write):
    write("42.2", TAIL)
    done = in_a_process("course", "check", "42.2", work=work)
    first, _, rest = done.stdout.partition(", expected ")
    assert done.returncode == 1 and not done.stderr
    assert first.splitlines() == [
        "exercise 42.2  FAILED  scale_rows [rows=3 columns=33 threads=32]  (emulator)",
        "  first mismatch y[0, 32]: got nan",
    ]
    assert rest.partition("   ")[2] == (
        "(3 of 99 wrong: column 32 of every row)\n"
        "  never written: 3 elements      out of bounds: 0      races: 0\n"
        "  next: tiny-vllm course hint 42.2\n"
        "  exercise 42.3 is not solved yet: a stand-in ran in its place\n"
    )


def test_a_whole_chapter_and_another_implementation(course):
    done = course("check", "42", "--impl", "solution")
    assert done.returncode == 1  # the fault is not answered
    assert [line.split()[2] for line in done.stdout.splitlines() if line.startswith("exercise")] == [
        "passed", "passed", "passed", "not",
    ]  # fmt: skip


def test_hints_go_up_and_stop(course, work):
    said = [course("hint", "42.3").stdout for _ in range(4)]
    assert [line.partition(":")[0] for line in said] == [f"exercise 42.3, hint {n} of 3" for n in (1, 2, 3, 3)]
    assert "course diff 42.3 --give-up" in said[2] and "give-up" not in said[1]
    assert json.loads((work / ".course.json").read_text())["hints"] == {"42.3": 3}


def test_giving_up_is_recorded(course, work):
    done = course("diff", "42.3", "--give-up")
    assert done.returncode == 0 and "+    for (int stride = blockDim.x / 2;" in done.stdout
    assert json.loads((work / ".course.json").read_text())["give_ups"] == {"42.3": True}
    assert "given up" in course("status").stdout
    assert course("diff", "42.3").returncode == 0


def test_a_release_without_answers_says_so(course, work, tmp_path):
    from tests.course.conftest import make_tree

    other = make_tree(tmp_path / "release")
    file = other / "chapters" / "ch42_sums" / "sums.cu"
    file.write_text(markers.skeleton(file.read_text("utf-8"), python=False), "utf-8")
    for option in ([], ["--give-up"]):
        assert "holds no answers" in mistake(course("diff", "42.3", *option, tree=other))
    assert not load(work).give_ups
    said = [course("hint", "42.3", tree=other).stdout for _ in range(3)]
    assert "hint 3 of 3" in said[-1] and "give-up" not in said[-1]


def test_a_fault_is_answered(course, work):
    unanswered = course("check", "42.4").stdout
    assert "exercise 42.4  not answered yet  ch42_sums/faults/42_4.cu\n" in unanswered and "race" not in unanswered
    right = course("check", "42.4", "--line", "10", "--kind", "race", "--repair", REPAIR)
    assert right.returncode == 0 and right.stdout.startswith("exercise 42.4  passed  largest  10 of 10 points")
    wrong = course("check", "42.4", "--line", "5", "--kind", "race", "--repair", "    best[0] = x[0];")
    assert wrong.returncode == 1
    assert "  line 5 is not the line that check mode reports; the repair is wrong too\n" in wrong.stdout
    assert "  your answer of before (line 10, 10 points) is better, and is kept\n" in wrong.stdout
    assert json.loads((work / ".course.json").read_text())["answers"]["42.4"]["line"] == 10
    kind = course("check", "42.4", "--line", "10", "--kind", "a race", "--repair", REPAIR).stdout
    assert "'a race' is not the kind that check mode reports (the kinds are race, barrier, out of bounds, unin" in kind
    gone = course("check", "42.4", "--line", "10", "--kind", "race", "--repair", "    __syncthreads();").stdout
    assert "  your text took the place of `result[0] = best[0];`; keep that statement in it, or use --after" in gone
    assert "give all three" in mistake(course("check", "42.4", "--line", "3"))
    assert "line is 99; faults/42_4.cu has the lines 1 to 11" in mistake(
        course("check", "42.4", "--line", "99", "--kind", "race", "--repair", "x")
    )


def test_the_kinds_are_check_modes():
    assert set(KINDS) == set(words._KINDS.values())


def test_a_region_and_a_chapter_are_put_back_and_the_old_text_is_kept(course, work, write, small):
    write("42.2", RIGHT)
    write("42.3", "    partial[0] = 7;\n")
    done = course("reset", "42.3")
    assert done.stdout == "put back work/ch42_sums/sums.cu; the old file is work/.attic/ch42_sums/sums.1.cu\n"
    bodies = markers.bodies((work / "ch42_sums" / "sums.cu").read_text("utf-8"))
    assert bodies == {"42.2": RIGHT, "42.3": ""}
    assert "partial[0] = 7;" in (work / ".attic" / "ch42_sums" / "sums.1.cu").read_text("utf-8")
    assert course("reset", "42").returncode == 0
    assert not any(markers.bodies((work / "ch42_sums" / "sums.cu").read_text("utf-8")).values())
    assert RIGHT in (work / ".attic" / "ch42_sums" / "sums.2.cu").read_text("utf-8")


@pytest.mark.parametrize("exercise", ["42.2", "42.3"])
def test_reset_mends_broken_marks_and_keeps_the_other_answers(course, work, write, exercise):
    other = "42.3" if exercise == "42.2" else "42.2"
    write(other, "    partial[0] = 7;\n")
    file = work / "ch42_sums" / "sums.cu"
    broken = file.read_text("utf-8").replace(f"    // EXERCISE-END {exercise}\n", "    my_lines();\n")
    file.write_text(broken, "utf-8")
    advised = mistake(course("check", exercise))
    assert f"`tiny-vllm course reset {exercise}` does" in advised
    done = course("reset", exercise)
    assert done.stdout == "put back work/ch42_sums/sums.cu; the old file is work/.attic/ch42_sums/sums.1.cu\n"
    assert markers.bodies(file.read_text("utf-8")) == {exercise: "", other: "    partial[0] = 7;\n"}
    assert (work / ".attic" / "ch42_sums" / "sums.1.cu").read_text("utf-8") == broken


def test_reset_brings_marks_back_that_are_gone(course, work, write):
    write("42.3", "    partial[0] = 7;\n")
    drop_marks(work / "ch42_sums" / "sums.cu")
    assert course("reset", "42.2").returncode == 0
    bodies = markers.bodies((work / "ch42_sums" / "sums.cu").read_text("utf-8"))
    assert bodies == {"42.2": "", "42.3": "    partial[0] = 7;\n"}


def test_lines_outside_the_marks_are_pointed_out(course, work, write):
    write("42.2", RIGHT)
    file = work / "ch42_sums" / "sums.cu"
    file.write_text(file.read_text("utf-8").replace("float sum = 0.0f;", "float sum = 1.0f;") + "\n\n", "utf-8")
    line = [line.strip() for line in file.read_text("utf-8").splitlines()].index("float sum = 1.0f;") + 1
    done = course("check", "42.2")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == (
        "  work/ch42_sums/sums.cu differs from the skeleton outside the exercises' marks "
        f"(first at line {line}); only what stands between the marks is checked"
    )
    assert course("check", "42").stdout.count("differs from the skeleton") == 1
    file.write_text(file.read_text("utf-8").replace("float sum = 1.0f;", "float sum = 0.0f;"), "utf-8")
    assert "differs" not in course("check", "42.2").stdout
    file.write_text(file.read_text("utf-8").rstrip().removesuffix("}"), "utf-8")
    assert "differs" in course("check", "42.2").stdout


def test_a_stand_in_is_named_until_its_exercise_is_solved(course, write):
    write("42.3", "worked")
    said = "  exercise 42.2 is not solved yet: a stand-in ran in its place\n"
    assert course("check", "42.3").stdout.endswith(said)
    assert said not in course("check", "42.2").stdout  # which is not solved itself
    write("42.2", RIGHT)
    assert "stand-in" not in course("check", "42.3").stdout


def test_a_second_start_keeps_what_is_there(course, work, write):
    write("42.2", RIGHT)
    before = (work / "ch42_sums" / "sums.cu").read_bytes()
    said = mistake(course("start", "42"))
    assert "is there already and has your changes" in said and "`tiny-vllm course reset 42`" in said
    (work / "ch42_sums" / "warm_up.py").unlink()
    done = course("start", "42")
    assert "wrote work/ch42_sums/warm_up.py\nkept  work/ch42_sums/sums.cu, which has your changes\n" in done.stdout
    assert (work / "ch42_sums" / "sums.cu").read_bytes() == before


def test_start_copies_the_notebook_without_the_notice(course, tmp_path):
    from tests.course.conftest import make_tree

    other, work = make_tree(tmp_path / "tree"), tmp_path / "mine"
    (other / "notebooks").mkdir()
    cells = [
        {"cell_type": "markdown", "metadata": {"tags": ["master-copy"]}, "source": "do not edit"},
        {"cell_type": "code", "metadata": {}, "source": "1 + 1", "outputs": [], "execution_count": None},
    ]
    (other / "notebooks" / "42_sums.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}), "utf-8")
    assert "wrote mine/ch42_sums/42_sums.ipynb" in course("start", "42", tree=other, work=work).stdout
    copy = json.loads((work / "ch42_sums" / "42_sums.ipynb").read_text("utf-8"))
    assert [cell["source"] for cell in copy["cells"]] == ["1 + 1"] and copy["nbformat"] == 4


def spoil_marks(file):
    file.write_text(file.read_text("utf-8").replace("    // EXERCISE-END 42.2\n", ""), "utf-8")


def drop_marks(file):
    text = "\n".join(line for line in file.read_text("utf-8").splitlines() if "42.2" not in line)
    file.write_text(text, "utf-8")


def in_latin_1(file):
    file.write_bytes(file.read_bytes() + "// größer\n".encode("latin-1"))


def a_pipe(file):
    file.unlink()
    os.mkfifo(file)


def a_folder(file):
    file.unlink()
    file.mkdir()


def binary(file):
    file.write_bytes(b"\0" * 10)


@pytest.mark.parametrize(
    "spoil, words",
    [
        (spoil_marks, "sums.cu, line 23: exercise 42.3 begins inside the region of exercise 42.2; put both marks back"),
        (drop_marks, "sums.cu has no marks of exercise 42.2; put them back, or `tiny-vllm course reset 42.2` does"),
        (in_latin_1, "is not UTF-8 text (line"),
        (a_folder, "sums.cu is a folder, where a file should be; move it away"),
        (binary, "holds a zero byte"),
        (a_pipe, "sums.cu is no file, but a pipe or a device"),
        (lambda file: file.unlink(), "there is no work/ch42_sums/sums.cu; `tiny-vllm course start 42` writes it"),
    ],
)
def test_a_spoilt_file_is_one_sentence(course, work, spoil, words):
    spoil(work / "ch42_sums" / "sums.cu")
    assert words in mistake(course("check", "42.2"))


def test_windows_line_ends_do_no_harm(course, work, write):
    write("42.2", RIGHT)
    file = work / "ch42_sums" / "sums.cu"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert course("check", "42.2").returncode == 0


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["check", "7"], "there is no chapter 7 with exercises; there are: 42"),
        (["check", "42.9"], "there is no exercise 42.9; chapter 42 has 42.1, 42.2, 42.3, 42.4"),
        (["check", "rms_norm"], "'rms_norm' is neither a chapter nor an exercise; give a number such as 3 or 3.2"),
        (["check", "42.2", "--impl", "nowhere"], "there is no folder nowhere; give work, solution, or a folder"),
        (["check", "42.2", "--line", "3"], "--line, --kind and --repair answer a find-the-fault exercise"),
        (["hint", "42"], "a hint is for one exercise; chapter 42 has 42.1, 42.2, 42.3, 42.4"),
        (["diff", "42.4"], "exercise 42.4 has no region to compare"),
        (["reset", "42.4"], "exercise 42.4 has no file to fill in"),
        (["frobnicate"], "see tiny-vllm course --help"),
        ([], "see tiny-vllm course --help"),
    ],
)
def test_a_mistake_is_one_sentence(course, arguments, words):
    assert words in mistake(course(*arguments))


def test_a_worse_answer_of_a_fault_does_not_take_the_place_of_a_better_one(course, work):
    def answered(line: str, repair: str = "    best[0] = x[0];"):
        done = course("check", "42.4", "--line", line, "--kind", "race", "--repair", repair)
        return done.stdout, json.loads((work / ".course.json").read_text())["answers"]["42.4"]["line"]

    assert answered("5")[1] == 5
    assert answered("6")[1] == 6  # no worse than before
    assert answered("10", REPAIR)[1] == 10
    assert "is kept" in answered("6")[0]
    assert "10 of 10  passed" in course("status").stdout


def test_a_command_keeps_what_another_wrote_meanwhile(course, work, write, monkeypatch):
    """While `check 42` runs, the fault is answered and a hint is asked for."""
    write("42.2", RIGHT)
    real = check.check_exercise
    asked: list[str] = []

    def slow(chapter, exercise, *rest, **more):
        if not asked:
            asked.append(exercise)
            with changing(work) as state:
                state.answers["42.4"] = {"line": 10, "kind": "race", "repair": REPAIR, "repair_after": False}
                state.hints["42.2"] = 2
        return real(chapter, exercise, *rest, **more)

    monkeypatch.setattr(check, "check_exercise", slow)
    course("check", "42")
    kept = json.loads((work / ".course.json").read_text())
    assert asked and kept["hints"] == {"42.2": 2} and kept["answers"]["42.4"]["line"] == 10
    assert kept["results"]["42.2"]["passed"]


def test_two_commands_do_not_write_at_once(work):
    def count(times: int) -> None:
        for _ in range(times):
            with changing(work) as state:
                state.hints["42.2"] = state.hints.get("42.2", 0) + 1

    threads = [threading.Thread(target=count, args=(20,)) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert load(work).hints == {"42.2": 60}


@pytest.mark.parametrize("command", [("hint", "42.2"), ("status",), ("check", "42.4")])
@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "Expecting property name"),
        ("[" * 100_000, "recursion"),
        ('{"hints": 3}', "it is no table of tables"),
        ('{"hints": {"42.2": "x"}}', 'hints of 42.2 cannot be "x"'),
        ('{"results": {"42.2": null}}', "results of 42.2 cannot be null"),
        ('{"answers": {"42.4": []}}', "answers of 42.4 cannot be []"),
        ('{"answers": {"42.4": {"line": "x"}}}', 'answers of 42.4 cannot be {"line": "x"}'),
        ('{"answers": {"42.4": {"line": 1, "kind": "", "repair": "", "more": 2}}}', "answers of 42.4 cannot be {"),
    ],
)
def test_a_damaged_state_file(course, work, command, text, words):
    (work / ".course.json").write_text(text, "utf-8")
    said = mistake(course(*command))
    assert words in said and "move it away (the hints, results, predictions and find-the-fault answers in it" in said


def test_work_is_a_file(course, tmp_path):
    (tmp_path / "file").write_text("x")
    assert "is a file, where your folder of answers should be" in mistake(course("status", work=tmp_path / "file"))


@pytest.mark.parametrize("command", [("hint", "42.2"), ("start", "42")])
def test_a_folder_that_cannot_be_written(course, tmp_path, command):
    (tmp_path / "file").write_text("x", "utf-8")  # permissions do not stop root
    said = mistake(course(*command, work=tmp_path / "file" / "work"))
    assert "cannot be written: " in said and "permissions" in said


def test_no_compiler_is_nobodys_fault(course, write, monkeypatch):
    write("42.2", RIGHT)
    monkeypatch.setenv("TINY_VLLM_CXX", "/no/such/compiler")
    assert "TINY_VLLM_CXX is '/no/such/compiler'" in mistake(course("check", "42.2"))


def test_no_gpu(course):
    if why_no_cuda() is None:
        pytest.skip("there is a GPU")
    assert "cuda is not available" in mistake(course("check", "42.2", "--device", "cuda"))
