"""A page becomes cells: outputs leave the text, pictures stay on the page, solved cells are filled in."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jupytext", reason="the notebooks extra is not installed")

from tools.lesson_page import is_compared, is_figure, page_cells, printed, printed_text, solve, tags, with_outputs

PAGE = (Path(__file__).parents[1] / "data" / "course" / "page.md").read_text(encoding="utf-8")


@pytest.fixture
def cells():
    return page_cells(PAGE)


def of(cells, start: str):
    return next(cell for cell in cells if cell.source.startswith(start))


def test_the_output_of_a_compared_cell_leaves_the_text(cells):
    cell = of(cells, 'print("one")')
    assert printed_text(cell) == "one\ntwo\n" and cell.execution_count == 1 and is_compared(cell)
    behind = cells[cells.index(cell) + 1].source
    assert behind == "Text behind the output.\n\n```text\na block that is no output\n```"


def test_a_figure_keeps_its_sentence_and_the_picture_line_is_gone(cells):
    cell = of(cells, "show(bars)")
    assert is_figure(cell) and is_compared(cell) and printed_text(cell) == "the last bar is the longest\n"
    assert not any("bars.svg" in cell.source for cell in cells)
    assert of(cells, "## A second cell").source == "## A second cell\n\nA picture line is the page's alone."


def test_other_cells_were_never_run(cells):
    plain = [cell for cell in cells if cell.cell_type == "code" and not is_compared(cell)]
    assert [(cell.outputs, cell.execution_count) for cell in plain] == [([], None)] * 4
    assert tags(of(cells, "%%exercise")) == ["slide"]


def test_two_blank_lines_split_a_text(cells):
    assert [cell.cell_type for cell in cells[:4]] == ["markdown", "code", "markdown", "code"]
    assert [cell.source for cell in page_cells("one\n\ntwo\n\n\nthree")] == ["one\n\ntwo", "three"]


def test_solving(cells):
    for cell in cells:
        solve(cell, {"3.2": "    for (;;) {\n        a();\n    }\n"}, {"3.4": 'answer("3.4", line=7)'})
    exercise = of(cells, "%%exercise")
    assert exercise.source == "%%exercise 3.2\nfor (;;) {\n    a();\n}"
    assert [printed_text(of(cells, start)) for start in ("%%exercise", "check", "answer")] == [
        "3.2: passed\n",
        "3.2: passed\n",
        "3.4: passed\n",
    ]
    assert of(cells, "answer").source == 'answer("3.4", line=7)'
    assert all(is_compared(of(cells, start)) for start in ("%%exercise", "check", "answer"))
    assert printed_text(of(cells, "swap")) == "rms_norm of exercise 3.3: yours\nlogits within 1e-3: True\n"


def test_a_page_takes_what_its_cells_print(cells):
    assert with_outputs(PAGE, cells) == PAGE
    of(cells, 'print("one")').outputs = [printed("three\n")]
    changed = with_outputs(PAGE, cells)
    assert changed == PAGE.replace("one\ntwo\n```", "three\n```", 1)
    without = PAGE.replace("```text\none\ntwo\n```\n\n", "", 1)
    assert with_outputs(without, cells) == changed
