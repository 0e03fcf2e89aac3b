"""The worked side of a chapter, for notebooks that are solved, and the search for it where it must not be."""

from __future__ import annotations

import sys
from pathlib import Path

from tiny_vllm.course import markers
from tiny_vllm.course.chapter import Chapter
from tiny_vllm.course.files import read_source
from tiny_vllm.course.skeletons import skeleton_of
from tiny_vllm.grading.windows import Window, leaks, windows, worked_windows

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def worked_bodies(chapter: Chapter) -> dict[str, str]:
    """The worked region of each exercise."""
    found: dict[str, str] = {}
    for file in chapter.files:
        found |= markers.bodies(read_source(chapter.folder / file))
    return found


def worked_answers(chapter: Chapter) -> dict[str, str]:
    """The call that answers each find-the-fault exercise, from chapters/chNN_name/lecturer/answers.toml."""
    file = chapter.folder / "lecturer" / "answers.toml"
    answers = tomllib.loads(read_source(file)) if file.is_file() else {}
    return {id: f'answer("{id}", {", ".join(f"{k}={v!r}" for k, v in each.items())})' for id, each in answers.items()}


def answers_in(folder: Path, chapter: Chapter) -> list[str]:
    """The exercises whose worked lines a file of the folder shows; lines that the skeleton itself shows are none."""
    given = set[Window]().union(*(windows(skeleton_of(chapter, file)) for file in chapter.files))
    worked = {window: id for window, id in worked_windows([chapter]).items() if window not in given}
    return [exercise for _, exercise, _ in leaks(folder, worked)]
