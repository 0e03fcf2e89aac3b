"""`tiny-vllm course status`: what is solved so far, with points and hints used."""

from __future__ import annotations

import argparse

from tiny_vllm.course.answer import Answer
from tiny_vllm.course.chapter import chapters
from tiny_vllm.course.results import body_of
from tiny_vllm.course.state import State, load
from tiny_vllm.errors import UserError


def run(arguments: argparse.Namespace) -> int:
    state = load()
    reached = total = 0.0
    for chapter in chapters():
        print(f"{chapter.number:>2}  {chapter.title}")
        if not (state.work / chapter.name).is_dir():
            print(f"    not started: tiny-vllm course start {chapter.number}")
            continue
        for exercise in chapter.exercises:
            words, points = _standing(Answer(chapter, exercise, state.work), state)
            reached, total = reached + points, total + exercise.points
            hints = state.hints.get(exercise.id, 0)
            used = f"{hints} hint{'s' if hints != 1 else ''}" if hints else ""
            row = f"{exercise.id:<5} {exercise.kind:<8} {points:>4g} of {exercise.points:<3} {words:<26} {used}"
            print(f"    {row}".rstrip())
    print(f"points in the chapters started: {reached:g} of {total:g}")
    return 0


def _standing(answer: Answer, state: State) -> tuple[str, float]:
    """Words and points of an exercise as it was checked last."""
    id = answer.exercise.id
    if id in state.give_ups:
        return "given up", 0.0
    if id not in state.results:
        return "not checked yet", 0.0
    result = state.results[id]
    try:
        if result["body"] != body_of(answer, state):
            return "changed since its check", 0.0
    except UserError as error:
        return str(error).partition(";")[0], 0.0
    words = "passed" if result["passed"] else "not right yet" if result["solved"] else "not solved yet"
    return words, float(result["score"])
