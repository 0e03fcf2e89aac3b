"""`tiny-vllm course check 3.2`: check your answer of an exercise, or of all of a chapter."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from tiny_vllm.course import faults, markers
from tiny_vllm.course.answer import Answer
from tiny_vllm.course.chapter import Exercise, find
from tiny_vllm.course.checking import check_exercise, load_cases
from tiny_vllm.course.compose import stand_ins
from tiny_vllm.course.failure import Outcome, report
from tiny_vllm.course.files import implementation
from tiny_vllm.course.results import body_of, record, record_fault
from tiny_vllm.course.skeletons import fingerprint, skeleton_of
from tiny_vllm.course.state import State, load
from tiny_vllm.device import get_device
from tiny_vllm.device.source import LEFT_OUT
from tiny_vllm.errors import UserError

FAILED = 1

TARGET = "such as 3.2; or 3 for the whole chapter"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("emulator", "cuda"), default="emulator", help="cuda sees values only")
    parser.add_argument("--impl", default="work", metavar="WHOSE", help="work (the default), solution, or a folder")
    answer = parser.add_argument_group("the answer of a find-the-fault exercise")
    answer.add_argument("--line", type=int, metavar="N", help="the line that the fault is in")
    answer.add_argument("--kind", help=f"what check mode calls it: {', '.join(faults.KINDS)}")
    answer.add_argument("--repair", metavar="TEXT", help="what stands in the place of that line")
    answer.add_argument("--after", "--repair-after", action="store_true", help="put the repair behind the line instead")


def run(arguments: argparse.Namespace) -> int:
    chapter, exercise = find(arguments.target)
    get_device(arguments.device)  # or one sentence says why there is none
    whose, state = implementation(arguments.impl), load()
    given = _given(arguments, exercise)
    tasks = {task.exercise for task in load_cases(chapter).TASKS}
    passed, notes = True, list[str]()
    for each in [exercise] if exercise else [each for each in chapter.exercises if each.id in tasks]:
        answer = Answer(chapter, each, whose)
        fault = (given or state.answers.get(each.id)) if each.kind == "fault" else None
        body = body_of(answer, state)
        outcome = _check(answer, arguments.device, fault)
        passed = passed and outcome is not None and outcome.passed
        if outcome is None:
            continue
        print(report(outcome), flush=True)
        notes += _stand_ins(answer) if outcome.solved else []
        if whose == state.work:
            if fault is None:
                record(state.work, outcome, body)
            elif kept := record_fault(state.work, outcome, fault, new=given is not None):
                notes.append(kept)
            notes += _elsewhere(answer, state)
    for note in dict.fromkeys(notes):  # each once, though it may hold for several exercises
        print(f"  {note}")
    return 0 if passed else FAILED


def _given(arguments: argparse.Namespace, exercise: Exercise | None) -> dict[str, Any] | None:
    """The answer of a find-the-fault exercise that the command line holds."""
    answer = {"line": arguments.line, "kind": arguments.kind, "repair": arguments.repair}
    if set(answer.values()) == {None} and not arguments.after:
        return None
    if exercise is None or exercise.kind != "fault":
        raise UserError("--line, --kind and --repair answer a find-the-fault exercise; give the number of one")
    if None in answer.values():
        raise UserError("an answer has --line, --kind and --repair; give all three")
    return {**answer, "repair_after": arguments.after}


def _check(answer: Answer, device: str, fault: dict[str, Any] | None) -> Outcome | None:
    """None for a fault that is not answered yet, which is said. fault: the answer to one."""
    chapter, exercise = answer.chapter, answer.exercise
    if exercise.kind != "fault":
        return check_exercise(chapter, exercise.id, answer.folder, device=device)
    if fault is not None:
        return faults.check_answer(chapter, exercise.id, **fault)
    usage = f"tiny-vllm course check {exercise.id} --line N --kind KIND --repair 'TEXT' [--after]"
    print(f"exercise {exercise.id}  not answered yet  {chapter.name}/{exercise.file}\n  {usage}")
    return None


def _stand_ins(answer: Answer) -> Iterator[str]:
    """Which of the file's other exercises something filled in that is not the student's, for want of their lines."""
    if answer.exercise.kind == "fault":
        return
    text = answer.text
    spare = dict(stand_ins(answer.chapter, text))
    for each in markers.regions(text):
        if each.id in spare and each.id != answer.exercise.id and not each.solved:
            yield f"exercise {each.id} is not solved yet: a stand-in ran in its place"


def _elsewhere(answer: Answer, state: State) -> Iterator[str]:
    """Where lines of the student stand that no check looks at."""
    chapter, exercise = answer.chapter, answer.exercise
    if exercise.kind == "fault":
        return
    worked = Answer(chapter, exercise, chapter.folder.parent)
    released = (chapter.folder.parents[1] / "kernels" / LEFT_OUT).is_file()  # its worked files hold no lines
    if released and worked.region.solved and not answer.region.solved:
        yield f"your lines stand in {worked.name}; put them into {answer.folder.name}/"
    skeleton, text = skeleton_of(chapter, exercise.file), answer.text
    if state.skeletons.get(f"{chapter.name}/{exercise.file}") not in (None, fingerprint(skeleton)):
        return  # it is older than the chapter: `course update`
    end = len(text.splitlines()), ""
    for (number, mine), (_, theirs) in zip_longest(*map(markers.outside, (text, skeleton)), fillvalue=end):
        if mine != theirs:
            where = f"outside the exercises' marks (first at line {number})"
            yield f"{answer.name} differs from the skeleton {where}; only what stands between the marks is checked"
            return
