"""`tiny-vllm course check 3.2`: run an exercise's cases on your answer and say what is wrong."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tiny_vllm.course import faults, skeletons
from tiny_vllm.course.chapter import Chapter, Exercise, find
from tiny_vllm.course.checking import check_exercise, load_cases
from tiny_vllm.course.compose import read_answer, region
from tiny_vllm.course.failure import report
from tiny_vllm.course.files import implementation, read_source, work_folder
from tiny_vllm.course.outcome import Outcome
from tiny_vllm.course.state import State, load
from tiny_vllm.device import get_device
from tiny_vllm.device.source import LEFT_OUT
from tiny_vllm.errors import UserError

FAILED = 1


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("check", help="check your answer of an exercise, or of all of a chapter")
    parser.add_argument("target", metavar="EXERCISE", help="such as 3.2; or 3 for the whole chapter")
    parser.add_argument("--device", choices=("emulator", "cuda"), default="emulator", help="cuda sees values only")
    parser.add_argument("--impl", default="work", metavar="WHOSE", help="work (the default), solution, or a folder")
    answer = parser.add_argument_group("the answer of a find-the-fault exercise")
    answer.add_argument("--line", type=int, metavar="N", help="the line that the fault is in")
    answer.add_argument("--kind", help=f"what check mode calls it: {', '.join(faults.KINDS)}")
    answer.add_argument("--repair", metavar="TEXT", help="what stands in the place of that line")
    answer.add_argument("--after", "--repair-after", action="store_true", help="put the repair behind the line instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    chapter, exercise = find(arguments.target)
    get_device(arguments.device)  # or one sentence says why there is none
    whose, work = implementation(arguments.impl), work_folder()
    state = load(work)
    _take_answer(arguments, exercise, state)
    checked = [exercise] if exercise else _checkable(chapter)
    passed = True
    for each in checked:
        outcome = (
            _fault(chapter, each, state) if each.kind == "fault" else _region(chapter, each, whose, arguments.device)
        )
        passed = passed and outcome is not None and outcome.passed
        if outcome is not None:
            print(report(outcome), flush=True)
            if whose == work:
                _record(chapter, outcome, work, state)
                if not outcome.solved and _misplaced(chapter, each):
                    print(f"  your lines stand in chapters/{chapter.name}/{each.file}; put them into {work.name}/")
    return 0 if passed else FAILED


def _region(chapter: Chapter, exercise: Exercise, whose: Path, device: str) -> Outcome:
    return check_exercise(chapter, exercise.id, whose, device=device)


def _misplaced(chapter: Chapter, exercise: Exercise) -> bool:
    """Whether, in a release, which has no worked lines, something stands in the chapter's own file."""
    released = (chapter.folder.parents[1] / "kernels" / LEFT_OUT).is_file()
    return released and region(read_source(chapter.folder / exercise.file), exercise.id, exercise.file).solved


def _fault(chapter: Chapter, exercise: Exercise, state: State) -> Outcome | None:
    answer = state.answers.get(exercise.id)
    if answer is None:
        usage = f"tiny-vllm course check {exercise.id} --line N --kind KIND --repair 'TEXT' [--after]"
        print(f"exercise {exercise.id}  not answered yet  {chapter.name}/{exercise.file}\n  {usage}")
        return None
    return faults.check_answer(chapter, exercise.id, **answer)


def _take_answer(arguments: argparse.Namespace, exercise: Exercise | None, state: State) -> None:
    given = [arguments.line, arguments.kind, arguments.repair]
    if given == [None] * 3 and not arguments.after:
        return
    if exercise is None or exercise.kind != "fault":
        raise UserError("--line, --kind and --repair answer a find-the-fault exercise; give the number of one")
    if None in given:
        raise UserError("an answer has --line, --kind and --repair; give all three")
    answer = {"line": arguments.line, "kind": arguments.kind, "repair": arguments.repair}
    state.answers[exercise.id] = {**answer, "repair_after": arguments.after}


def _checkable(chapter: Chapter) -> list[Exercise]:
    tasks = {task.exercise for task in load_cases(chapter).TASKS}
    return [each for each in chapter.exercises if each.id in tasks]


def _record(chapter: Chapter, outcome: Outcome, work: Path, state: State) -> None:
    """For `course status`; good until the region changes."""
    result = {"score": outcome.score, "max": outcome.max, "passed": outcome.passed, "solved": outcome.solved}
    state.results[outcome.exercise] = {**result, "body": body_of(chapter, outcome.exercise, work, state)}
    state.save(work)


def body_of(chapter: Chapter, exercise: str, work: Path, state: State) -> str:
    """A hash of what stands in the region, or of a fault's answer."""
    entry = chapter.exercise(exercise)
    if entry.kind == "fault":
        return skeletons.fingerprint(repr(sorted(state.answers.get(exercise, {}).items())))
    return skeletons.fingerprint(region(read_answer(chapter, work, entry.file), exercise, entry.file).body)
