"""A lesson's README.md as the cells of a notebook, and back: jupytext's plain Markdown and what this course adds.

A ```text block right behind a code cell that is compared is that cell's output: it stands on the page, not in the
notebook's text. A line of nothing but a picture is the page's alone too: in the notebook a cell draws it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

import jupytext
import nbformat

COMPARED = "nbval-check-output"
Cell = Any  # of nbformat
Notebook = Any

_OUTPUT = re.compile(r"\A\s*```text\n(.*?)^```[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)[ \t]*\n?", re.MULTILINE)
_EXERCISE = re.compile(r"%%exercise (\d+\.\d+)[ \t]*\n")
_CHECK = re.compile(r'check\("(\d+\.\d+)"\)')
_ANSWER = re.compile(r'answer\("(\d+\.\d+)"')
_FIGURE = re.compile(r"^show\(", re.MULTILINE)


def page_cells(page: str) -> list[Cell]:
    """The cells of a page; compared cells and figures have their text as output, ready for nbval."""
    found: list[Cell] = []
    for cell in jupytext.reads(page, fmt="md").cells:
        if cell.cell_type == "code":
            found.append(_code_cell(cell))
            continue
        text = cell.source
        if found and is_compared(found[-1]) and not found[-1].outputs and (match := _OUTPUT.match(text)):
            found[-1].outputs = [printed(match[1])]
            text = text[match.end() :]
        text = _PICTURE.sub("", text).strip("\n")
        if text:
            found.append(nbformat.v4.new_markdown_cell(re.sub(r"\n{3,}", "\n\n", text)))
    return found


def is_compared(cell: Cell) -> bool:
    """Whether nbval looks at what the cell prints."""
    return cell.cell_type == "code" and (COMPARED in tags(cell) or is_figure(cell))


def is_figure(cell: Cell) -> bool:
    return cell.cell_type == "code" and _FIGURE.search(cell.source) is not None


def tags(cell: Cell) -> list[str]:
    found: list[str] = cell.metadata.get("tags", [])
    return found


def printed(text: str) -> Cell:
    """What a cell writes to standard output."""
    return nbformat.v4.new_output("stream", name="stdout", text=text)


def printed_text(cell: Cell, stream: str = "stdout") -> str:
    """What a cell wrote to standard output, or to another stream, all of it."""
    return "".join(each.text for each in cell.outputs if each.output_type == "stream" and each.name == stream)


def exercise_of(cell: Cell) -> str | None:
    """The exercise that the cell solves, checks or answers."""
    found = (each.match(cell.source) for each in (_EXERCISE, _CHECK, _ANSWER))
    return next((match[1] for match in found if match), None)


def solve(cell: Cell, bodies: Mapping[str, str], answers: Mapping[str, str]) -> None:
    """Fill in a cell that waits for the reader: the worked lines of an exercise, the worked answer of a fault.

    answers: the whole call, by exercise. Filled cells and checks print `3.2: passed`, and nbval looks at it. What other
    cells print is ours in the one set and the reader's in the other.
    """
    exercise = exercise_of(cell) or ""
    if exercise in answers and _ANSWER.match(cell.source):
        cell.source = answers[exercise]
    elif exercise in bodies and _EXERCISE.match(cell.source):
        cell.source = f"%%exercise {exercise}\n{textwrap.dedent(bodies[exercise])}".rstrip("\n")
    elif exercise not in bodies and exercise not in answers:
        for each in cell.get("outputs", []):
            if each.output_type == "stream":
                each.text = each.text.replace("the worked one", "yours")
        return
    cell.metadata["tags"] = [*tags(cell), COMPARED]
    cell.outputs, cell.execution_count = [printed(f"{exercise}: passed\n")], 1


def with_outputs(page: str, cells: list[Cell]) -> str:
    """The page with the ```text block of each compared cell replaced by what these executed cells printed."""
    wanted = {cell.source.strip(): printed_text(cell) for cell in cells if is_compared(cell)}

    def block(match: re.Match[str]) -> str:
        text = wanted.get(match["code"].strip())
        return match[0] if not text else f"{match['cell']}\n\n```text\n{text}```\n"

    pattern = r"(?P<cell>^```python[^\n]*\n(?P<code>.*?)^```)[ \t]*\n(?:\s*^```text\n.*?^```[ \t]*\n)?"
    return re.sub(pattern, block, page, flags=re.DOTALL | re.MULTILINE)


def _code_cell(cell: Cell) -> Cell:
    made = nbformat.v4.new_code_cell(cell.source)
    if found := cell.metadata.get("tags"):
        made.metadata["tags"] = list(found)
    made.execution_count = 1 if is_compared(made) else None  # nbval takes a cell without a number as never run
    return made
