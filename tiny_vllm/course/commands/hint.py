"""`tiny-vllm course hint 3.2`: the next hint of an exercise: a question, what to do, a line with a hole."""

from __future__ import annotations

import argparse

from tiny_vllm.course.chapter import find
from tiny_vllm.course.state import load
from tiny_vllm.errors import UserError

TARGET = "such as 3.2"


def run(arguments: argparse.Namespace) -> int:
    chapter, exercise = find(arguments.target)
    if exercise is None:
        raise UserError(f"a hint is for one exercise; chapter {chapter.number} has {chapter.known}")
    state = load()
    last = len(exercise.hints)
    level = state.hints[exercise.id] = min(state.hints.get(exercise.id, 0) + 1, last)
    state.save()
    print(f"exercise {exercise.id}, hint {level} of {last}: {exercise.hints[level - 1]}")
    if level == last:
        print(f"That was the last. The answer: tiny-vllm course diff {exercise.id} --give-up")
    return 0
