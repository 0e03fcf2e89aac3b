"""A twist in a release: one sentence that changes the task, so that the published answer no longer fits."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny_vllm.course.chapter import Chapter, Exercise
from tiny_vllm.errors import UserError


def twisted(chapters: Sequence[Chapter], number: int) -> list[tuple[Chapter, Exercise]]:
    """The exercises that have a twist of this number; UserError where none of the chapters has one."""
    found = [(chapter, each) for chapter in chapters for each in chapter.exercises if number in each.twists]
    if not found:
        known = sorted({each for chapter in chapters for exercise in chapter.exercises for each in exercise.twists})
        raise UserError(f"no exercise has a twist {number}; there are: {', '.join(map(str, known)) or 'none'}")
    return found


def state(root: Path, chapter: Chapter, exercise: Exercise, number: int) -> None:
    """Say the sentence of a twist in the mark, on the page and in the notebook of a release at root.

    chapter.toml gets a line `twist = N`, by which `course check` there knows what is right.
    """
    folder, sentence = root / "chapters" / chapter.name, exercise.twists[number]
    id, page = re.escape(exercise.id), f"**This time:** {sentence}"
    _insert(folder / exercise.file, rf"EXERCISE-BEGIN {id} .*\S", f". This time: {sentence}")
    _insert(folder / "README.md", rf"(?=```python[^\n]*\n%%exercise {id}\b)", f"{page}\n\n")
    toml = folder / "chapter.toml"
    if (line := f"twist = {number}\n") not in (text := toml.read_text(encoding="utf-8")):
        toml.write_text(line + text, encoding="utf-8")
    for notebook in (root / "notebooks").glob(f"{chapter.number:02d}_*.ipynb"):
        _insert_cell(notebook, exercise.id, page)


def _insert(file: Path, pattern: str, addition: str) -> None:
    """Behind the one place that a pattern finds."""
    text = file.read_text(encoding="utf-8")
    ends = [found.end() for found in re.finditer(pattern, text)]
    if len(ends) != 1:
        raise UserError(f"{file.parent.name}/{file.name} has {len(ends)} places for a twist, not one: {pattern}")
    file.write_text(text[: ends[0]] + addition + text[ends[0] :], encoding="utf-8")


def _insert_cell(notebook: Path, exercise: str, page: str) -> None:
    """A text cell before the exercise's own."""
    content: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
    cells = content["cells"]
    at = next(i for i, cell in enumerate(cells) if "".join(cell["source"]).startswith(f"%%exercise {exercise}"))
    name = f"twist-{exercise.replace('.', '-')}"
    cells.insert(at, {"cell_type": "markdown", "id": name, "metadata": {}, "source": [page]})
    notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
