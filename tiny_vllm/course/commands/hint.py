"""`tiny-vllm course hint 3.2`: the next hint of an exercise: a question, what to do, a line with a hole."""

from __future__ import annotations

import argparse

from tiny_vllm.course.answer import Answer
from tiny_vllm.course.chapter import find
from tiny_vllm.course.state import changing
from tiny_vllm.errors import UserError

TARGET = "such as 3.2"


def run(arguments: argparse.Namespace) -> int:
    chapter, exercise = find(arguments.target)
    if exercise is None:
        raise UserError(f"a hint is for one exercise; chapter {chapter.number} has {chapter.known}")
    last = len(exercise.hints)
    with changing() as state:
        level = state.hints[exercise.id] = min(state.hints.get(exercise.id, 0) + 1, last)
    print(f"exercise {exercise.id}, hint {level} of {last}: {exercise.hints[level - 1]}")
    if level == last and Answer(chapter, exercise, state.work).can_be_shown:
        print(f"That was the last. The answer: tiny-vllm course diff {exercise.id} --give-up")
    return 0
