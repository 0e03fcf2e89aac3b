"""A chapter's files as a student gets them: regions emptied, the first line says whose file it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

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


def fingerprint(text: str) -> str:
    """A hash that tells whether a skeleton, or a region's body, has changed."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def put(chapter: Chapter, file: str, text: str, work: Path, state: State) -> Path | None:
    """Write a file of work/ and note its skeleton; returns where the old one is kept, None if there was none."""
    path = work / chapter.name / file
    kept = keep(path, work) if path.exists() else None
    write_atomic(path, text)
    state.skeletons[f"{chapter.name}/{file}"] = fingerprint(skeleton_of(chapter, file))
    return kept


def notebook_of(chapter: Chapter) -> tuple[str, str] | None:
    """(name, text) of the student's own copy of the chapter's notebook, without the notice of the master copy."""
    for master in (chapter.folder.parents[1] / "notebooks").glob(f"{chapter.number:02d}_*.ipynb"):
        notebook = json.loads(master.read_text(encoding="utf-8"))
        own = [cell for cell in notebook["cells"] if MASTER_COPY not in cell.get("metadata", {}).get("tags", ())]
        return master.name, json.dumps({**notebook, "cells": own}, indent=1, ensure_ascii=False) + "\n"
    return None
