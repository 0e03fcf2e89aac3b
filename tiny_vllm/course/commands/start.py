"""`tiny-vllm course start 3`: write a chapter's skeletons and its notebook into work/."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tiny_vllm.course import skeletons
from tiny_vllm.course.chapter import Chapter, find
from tiny_vllm.course.files import read_source, work_folder, write_atomic
from tiny_vllm.course.state import load
from tiny_vllm.errors import UserError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("start", help="write a chapter's files, to be filled in, into work/")
    parser.add_argument("chapter", metavar="CHAPTER", help="a chapter's number, such as 3")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    chapter, _ = find(arguments.chapter)
    work = work_folder()
    written = start(chapter, work)
    changed = [file for file in chapter.files if _changed(chapter, file, work)]
    if not written and changed:
        raise UserError(
            f"{work.name}/{chapter.name}/{changed[0]} is there already and has your changes; go on with it, or begin "
            f"again with `tiny-vllm course reset {chapter.number}`, which keeps the old file"
        )
    for path in written:
        print(f"wrote {work.name}/{path.relative_to(work).as_posix()}")
    for file in changed:
        print(f"kept  {work.name}/{chapter.name}/{file}, which has your changes")
    print(f"next: tiny-vllm course check {chapter.exercises[0].id}" if chapter.exercises else "nothing to fill in")
    return 0


def start(chapter: Chapter, work: Path) -> list[Path]:
    """Write what is not there yet of a chapter's skeletons and notebook; a file that is there stays as it is."""
    state, written = load(work), []
    for file in chapter.files:
        path = work / chapter.name / file
        if not path.exists():
            skeletons.put(chapter, file, skeletons.skeleton_of(chapter, file), work, state)
            written.append(path)
    notebook = skeletons.notebook_of(chapter)
    if notebook and not (path := work / chapter.name / notebook[0]).exists():
        write_atomic(path, notebook[1])
        written.append(path)
    if written:
        state.save(work)
    return written


def _changed(chapter: Chapter, file: str, work: Path) -> bool:
    return read_source(work / chapter.name / file) != skeletons.skeleton_of(chapter, file)
