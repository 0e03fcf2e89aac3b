"""`tiny-vllm course reset 3.2`: put an exercise, or a chapter's files, back; the old text is kept."""

from __future__ import annotations

import argparse

from tiny_vllm.course import markers
from tiny_vllm.course.answer import Answer, region
from tiny_vllm.course.chapter import find
from tiny_vllm.course.skeletons import put, skeleton_of
from tiny_vllm.course.state import changing
from tiny_vllm.errors import UserError

TARGET = "such as 3.2; or 3 for all files of the chapter"


def run(arguments: argparse.Namespace) -> int:
    chapter, exercise = find(arguments.target)
    if exercise is not None and exercise.kind == "fault":
        raise UserError(f"exercise {exercise.id} has no file to fill in; answer it again with `tiny-vllm course check`")
    with changing() as state:
        for file in [exercise.file] if exercise else chapter.files:
            skeleton = skeleton_of(chapter, file)
            text = _emptied(Answer(chapter, exercise, state.work), skeleton) if exercise else skeleton
            print(f"put back {state.work.name}/{chapter.name}/{file}{put(chapter, file, text, skeleton, state)}")
    return 0


def _emptied(answer: Answer, skeleton: str) -> str:
    """The student's file without this answer; where its marks are broken, the skeleton with all answers found whole."""
    written, id = answer.text, answer.exercise.id
    empty = {id: markers.bodies(skeleton)[id]}
    try:
        region(written, id, answer.exercise.file)
        return markers.fill(written, empty)
    except UserError:
        return markers.fill(skeleton, markers.solved(written, strict=False) | empty)
