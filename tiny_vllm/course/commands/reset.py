"""`tiny-vllm course reset 3.2`: put a region, or a chapter's files, back as they were; the old text is kept."""

from __future__ import annotations

import argparse
from typing import Any

from tiny_vllm.course import markers, skeletons
from tiny_vllm.course.chapter import find
from tiny_vllm.course.compose import read_answer, region
from tiny_vllm.course.files import work_folder
from tiny_vllm.course.state import load
from tiny_vllm.errors import UserError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("reset", help="put an exercise, or a chapter's files, back; the old text is kept")
    parser.add_argument("target", metavar="EXERCISE", help="such as 3.2; or 3 for all files of the chapter")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    chapter, exercise = find(arguments.target)
    work = work_folder()
    state = load(work)
    if exercise is not None and exercise.kind == "fault":
        raise UserError(f"exercise {exercise.id} has no file to fill in; answer it again with `tiny-vllm course check`")
    for file in [exercise.file] if exercise else chapter.files:
        text = skeletons.skeleton_of(chapter, file)
        if exercise:
            written = read_answer(chapter, work, file)
            region(written, exercise.id, file)  # or its marks are gone
            text = markers.fill(written, {exercise.id: markers.bodies(text)[exercise.id]})
        kept = skeletons.put(chapter, file, text, work, state)
        old = f"; the old file is {work.name}/{kept.relative_to(work).as_posix()}" if kept else ""
        print(f"put back {work.name}/{chapter.name}/{file}{old}")
    state.save(work)
    return 0
