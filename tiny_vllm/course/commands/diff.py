"""`tiny-vllm course diff 3`: your regions beside the worked ones, once they are solved."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import Any

from tiny_vllm.course import markers
from tiny_vllm.course.chapter import Chapter, Exercise, find
from tiny_vllm.course.checking import check_exercise
from tiny_vllm.course.compose import read_answer, region
from tiny_vllm.course.files import read_source, work_folder
from tiny_vllm.course.state import load
from tiny_vllm.errors import UserError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("diff", help="your answer beside the worked one, after solving")
    parser.add_argument("target", metavar="EXERCISE", help="such as 3.2; or 3 for the whole chapter")
    parser.add_argument("--give-up", action="store_true", help="show it unsolved; this is recorded")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    chapter, exercise = find(arguments.target)
    asked = [each for each in ([exercise] if exercise else chapter.exercises) if each.kind != "fault"]
    if not asked:
        raise UserError(f"exercise {arguments.target} has no region to compare: it asks for a fault's line and repair")
    work = work_folder()
    state = load(work)
    unsolved = [each for each in asked if each.id not in state.give_ups and not _solved(chapter, each, work)]
    if unsolved and arguments.give_up:
        state.give_ups |= {each.id: True for each in unsolved}
        state.save(work)
    elif must := [each.id for each in unsolved if each.kind != "stretch" or exercise]:
        raise UserError(
            f"exercise {', '.join(must)} is not solved yet: `tiny-vllm course hint {must[0]}` helps; "
            "--give-up shows the answer all the same, and is recorded"
        )
    for each in asked:
        if each not in unsolved or arguments.give_up:
            print(_diff(chapter, each, work))
    return 0


def _solved(chapter: Chapter, exercise: Exercise, work: Path) -> bool:
    written = region(read_answer(chapter, work, exercise.file), exercise.id, exercise.file)
    return written.solved and check_exercise(chapter, exercise.id, work).passed


def _diff(chapter: Chapter, exercise: Exercise, work: Path) -> str:
    worked = markers.bodies(read_source(chapter.folder / exercise.file))[exercise.id]
    if not region(read_source(chapter.folder / exercise.file), exercise.id, exercise.file).solved:
        raise UserError("this copy of the course holds no answers; ask who gave it to you")
    yours = region(read_answer(chapter, work, exercise.file), exercise.id, exercise.file).body
    lines = difflib.unified_diff(
        yours.splitlines(),
        worked.splitlines(),
        f"yours, {exercise.id}",
        f"the worked one, {exercise.id}",
        lineterm="",
        n=99,
    )
    return "\n".join(lines) or f"exercise {exercise.id}: yours is the worked one, letter by letter"
