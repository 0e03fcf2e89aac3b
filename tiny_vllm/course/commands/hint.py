"""`tiny-vllm course hint 3.2`: the next of three hints."""

from __future__ import annotations

import argparse
from typing import Any

from tiny_vllm.course.chapter import find
from tiny_vllm.course.files import work_folder
from tiny_vllm.course.state import load
from tiny_vllm.errors import UserError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "hint", help="the next hint of an exercise: a question, what to do, a line with a hole"
    )
    parser.add_argument("exercise", metavar="EXERCISE", help="such as 3.2")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    chapter, exercise = find(arguments.exercise)
    if exercise is None:
        known = ", ".join(each.id for each in chapter.exercises)
        raise UserError(f"a hint is for one exercise; chapter {chapter.number} has {known}")
    work = work_folder()
    state = load(work)
    level = min(state.hints.get(exercise.id, 0) + 1, len(exercise.hints))
    state.hints[exercise.id] = level
    state.save(work)
    print(f"exercise {exercise.id}, hint {level} of {len(exercise.hints)}: {exercise.hints[level - 1]}")
    if level == len(exercise.hints):
        print(f"That was the last. The answer: tiny-vllm course diff {exercise.id} --give-up")
    return 0
