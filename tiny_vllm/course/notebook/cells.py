"""`%%exercise`: the cell's lines go between the marks of the file in work/, which stays the only truth."""

from __future__ import annotations

import textwrap
from enum import Enum

from tiny_vllm.course import markers, state
from tiny_vllm.course.answer import region
from tiny_vllm.course.files import keep, read_source, write_atomic
from tiny_vllm.course.notebook.lesson import Lesson
from tiny_vllm.errors import UserError


class Way(Enum):
    """What to do where the cell and the file differ."""

    ASK = ""
    TAKE_FILE = "--take-file"
    FORCE = "--force"


def parse_line(line: str) -> tuple[str, Way]:
    """What stands behind %%exercise: an id, and --take-file or --force."""
    words = line.split()
    ways = [Way(word) for word in words[1:] if word in (Way.TAKE_FILE.value, Way.FORCE.value)]
    if not words or len(words) != 1 + len(ways) or len(ways) > 1:
        raise UserError(f"%%exercise {line}: give an exercise and at most one of --take-file, --force")
    return words[0], ways[0] if ways else Way.ASK


def write_cell(lesson: Lesson, exercise: str, cell: str, way: Way = Way.ASK) -> str | None:
    """Put the cell's lines into the file of work/. None when they are there; else what to tell the reader.

    The lines are refused where the region changed since a cell wrote it last: then nothing is written, and the answer
    shows both. With --take-file nothing is written and the answer is the cell to have instead; with --force the file
    is kept in work/.attic/ first.
    """
    file = lesson.chapter.exercise(exercise).file
    path = lesson.own(file)
    text = read_source(path)
    there = region(text, exercise, file)
    if way is Way.TAKE_FILE:
        return _as_cell(exercise, there.body)
    body = _as_body(cell, there)
    notes = state.load(lesson.work)
    changed = there.solved and there.body not in (body, notes.cells.get(exercise))
    if changed and way is Way.ASK:
        return _both(exercise, there.body, body, file)
    if changed:
        keep(path, lesson.work)
    if there.body != body:
        write_atomic(path, markers.fill(text, {exercise: body}))
    with state.changing(lesson.work) as now:
        now.cells[exercise] = body
    return None


def _as_body(cell: str, there: markers.Region) -> str:
    """The cell's lines at the region's indentation; a cell of comments alone leaves an unsolved region as it is."""
    body = textwrap.indent(textwrap.dedent(cell).strip("\n") + "\n", there.indent)
    lines = [line for line in body.splitlines() if line.strip()]
    empty = all(line.lstrip().startswith(("//", "#")) for line in lines)
    return there.body if empty and not there.solved else body


def _as_cell(exercise: str, body: str) -> str:
    return f"%%exercise {exercise}\n{textwrap.dedent(body)}"


def _both(exercise: str, in_file: str, in_cell: str, file: str) -> str:
    return (
        f"exercise {exercise}: nothing was written, since {file} changed after this cell wrote it.\n"
        f"--- in the file\n{textwrap.dedent(in_file)}--- in this cell\n{textwrap.dedent(in_cell)}"
        f"--- to have the file's lines here: %%exercise {exercise} --take-file\n"
        f"--- to write this cell's lines:    %%exercise {exercise} --force\n"
    )
