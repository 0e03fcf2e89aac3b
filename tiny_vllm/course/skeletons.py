"""What `course start` writes: a chapter's files with their regions emptied, and the student's own notebook."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress

from tiny_vllm.course import markers
from tiny_vllm.course.chapter import Chapter
from tiny_vllm.course.files import keep, read_source, write_atomic
from tiny_vllm.course.state import State

WORKED = "// chapters/{0}/{1}: the worked solution of chapter"
RELEASED = "// chapters/{0}/{1}: gaps, to be filled in under work/, of chapter"
YOURS = "// work/{0}/{1}: your answers of chapter"
MASTER_COPY = "master-copy"  # the tag of the cells that only a notebook under notebooks/ has


def skeleton_of(chapter: Chapter, file: str) -> str:
    """What `course start` writes to work/chNN_name/FILE."""
    return _emptied(chapter, file, YOURS)


def released_of(chapter: Chapter, file: str) -> str:
    """What a release has in chapters/chNN_name/FILE: the same, and its first line sends the reader to work/."""
    return _emptied(chapter, file, RELEASED)


def _emptied(chapter: Chapter, file: str, first_line: str) -> str:
    text = markers.skeleton(read_source(chapter.folder / file), file.endswith(".py"))
    for each in (WORKED, RELEASED):
        if text.startswith(old := each.format(chapter.name, file)):
            return first_line.format(chapter.name, file) + text[len(old) :]
    return text


def notebook_of(chapter: Chapter) -> tuple[str, str] | None:
    """(name, text) of the student's own copy of the chapter's notebook, without the notice of the master copy."""
    for master in (chapter.folder.parents[1] / "notebooks").glob(f"{chapter.number:02d}_*.ipynb"):
        notebook = json.loads(master.read_text(encoding="utf-8"))
        own = [cell for cell in notebook["cells"] if MASTER_COPY not in cell.get("metadata", {}).get("tags", ())]
        return master.name, json.dumps({**notebook, "cells": own}, indent=1, ensure_ascii=False) + "\n"
    return None


def all_of(chapter: Chapter) -> dict[str, str]:
    """The texts of all that `course start` writes to work/chNN_name/, by their names."""
    notebook = notebook_of(chapter)
    return {file: skeleton_of(chapter, file) for file in chapter.files} | dict([notebook] if notebook else [])


def fingerprint(text: str, file: str = "") -> str:
    """A hash that tells whether a text has changed; of a notebook, whether its cells have, whatever they print."""
    if file.endswith(".ipynb"):
        with suppress(ValueError, KeyError, TypeError):  # it is no notebook
            text = json.dumps([[cell["cell_type"], "".join(cell["source"])] for cell in json.loads(text)["cells"]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def put(chapter: Chapter, file: str, text: str, made_from: str, state: State) -> str:
    """Write a file of work/ and note what it was made from; returns words that say where the old one is kept."""
    path = state.work / chapter.name / file
    kept = f"; the old file is {keep(path, state.work)}" if path.exists() else ""
    write_atomic(path, text)
    state.skeletons[f"{chapter.name}/{file}"] = fingerprint(made_from, file)
    return kept
