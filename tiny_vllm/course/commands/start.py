"""`tiny-vllm course start 3`: write a chapter's files, to be filled in, into work/."""

from __future__ import annotations

import argparse
from pathlib import Path

from tiny_vllm.course.chapter import Chapter, find
from tiny_vllm.course.files import read_source, work_folder
from tiny_vllm.course.skeletons import all_of, put, skeleton_of
from tiny_vllm.course.state import changing
from tiny_vllm.errors import UserError

TARGET = "a chapter's number, such as 3"


def run(arguments: argparse.Namespace) -> int:
    chapter, _ = find(arguments.target)
    work = work_folder()
    written, folder = start(chapter, work), f"{work.name}/{chapter.name}"
    changed = [f for f in chapter.files if read_source(work / chapter.name / f) != skeleton_of(chapter, f)]
    if not written and changed:
        raise UserError(
            f"{folder}/{changed[0]} is there already and has your changes; go on with it, or begin "
            f"again with `tiny-vllm course reset {chapter.number}`, which keeps the old file"
        )
    for path in written:
        print(f"wrote {folder}/{path.name}")
    for file in changed:
        print(f"kept  {folder}/{file}, which has your changes")
    print(f"next: tiny-vllm course check {chapter.exercises[0].id}" if chapter.exercises else "nothing to fill in")
    return 0


def start(chapter: Chapter, work: Path) -> list[Path]:
    """Write what is not there yet of a chapter's skeletons and notebook; a file that is there stays as it is."""
    written, texts = [], all_of(chapter)
    with changing(work) as state:
        for file, text in texts.items():
            path = work / chapter.name / file
            if not path.exists():
                put(chapter, file, text, text, state)
                written.append(path)
    return written
