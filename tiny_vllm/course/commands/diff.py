"""`tiny-vllm course diff 3`: your answer beside the worked one, after solving."""

from __future__ import annotations

import argparse
import difflib
from dataclasses import replace

from tiny_vllm.course.answer import Answer
from tiny_vllm.course.chapter import find
from tiny_vllm.course.checking import check_exercise
from tiny_vllm.course.state import changing, load
from tiny_vllm.errors import UserError

TARGET = "such as 3.2; or 3 for the whole chapter"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--give-up", action="store_true", help="show it unsolved; this is recorded")


def run(arguments: argparse.Namespace) -> int:
    chapter, exercise = find(arguments.target)
    state, wanted = load(), [exercise] if exercise else chapter.exercises
    asked = [Answer(chapter, each, state.work) for each in wanted if each.kind != "fault"]
    if not asked:
        raise UserError(f"exercise {arguments.target} has no region to compare: it asks for a fault's line and repair")
    if not all(each.can_be_shown for each in asked):
        raise UserError("this copy of the course holds no answers; ask who gave it to you")
    unsolved = [each for each in asked if each.exercise.id not in state.give_ups and not _passes(each)]
    if unsolved and arguments.give_up:
        with changing(state.work) as now:
            now.give_ups |= {each.exercise.id: True for each in unsolved}
    elif must := [each.exercise.id for each in unsolved if each.exercise.kind != "stretch" or exercise]:
        raise UserError(
            f"exercise {', '.join(must)} is not solved yet: `tiny-vllm course hint {must[0]}` helps; "
            "--give-up shows the answer all the same, and is recorded"
        )
    for each in asked:
        if each not in unsolved or arguments.give_up:
            print(_diff(each))
    return 0


def _passes(answer: Answer) -> bool:
    return answer.region.solved and check_exercise(answer.chapter, answer.exercise.id, answer.folder).passed


def _diff(answer: Answer) -> str:
    worked, id = replace(answer, folder=answer.chapter.folder.parent).region, answer.exercise.id
    yours, ours = answer.region.body.splitlines(), worked.body.splitlines()
    lines = difflib.unified_diff(yours, ours, f"yours, {id}", f"the worked one, {id}", lineterm="", n=99)
    return "\n".join(lines) or f"exercise {id}: yours is the worked one, letter by letter"
