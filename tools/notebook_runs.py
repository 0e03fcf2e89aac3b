"""A notebook that is run: by whom, what it printed other than its page says, and the pictures that it drew."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbclient import NotebookClient

from tools.lesson_page import Cell, Notebook, is_compared, is_figure, printed_text

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
CELL_SECONDS = 300


def execute(notebook: Notebook, figures: Path | None = None) -> None:
    """Run all cells in a kernel with an empty work folder of its own; their outputs are left in them.

    figures: where show() writes SVGs. Raises nbclient's CellExecutionError for a cell that fails.
    """
    NOTEBOOKS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, _environment(Path(folder) / "work", figures):
        NotebookClient(notebook, timeout=CELL_SECONDS, resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()


def differences(built: Notebook, executed: Notebook) -> list[str]:
    """For each compared cell that printed something else than its page says, the diff; nbval sees warnings too."""
    found = []
    for number, (cell, run) in enumerate(zip(built.cells, executed.cells, strict=True)):
        if not is_compared(cell):
            continue
        where = f"cell {number}: {cell.source.splitlines()[0]}"
        if printed_text(cell) != printed_text(run):
            lines = printed_text(cell).splitlines(), printed_text(run).splitlines()
            found.append("\n".join([where, *difflib.unified_diff(*lines, "the page", "the run", lineterm="")]))
        if warned := printed_text(run, "stderr"):
            found.append(f"{where}\nwrites to stderr: {warned}")
    return found


def keep_pictures(notebook: Notebook, executed: Notebook) -> None:
    """Give the figure cells of a built notebook the PNGs of another one with the same cells."""
    for cell, run in zip(notebook.cells, executed.cells, strict=True):
        if is_figure(cell):
            pictures = [each for each in run.get("outputs", []) if each.output_type == "display_data"]
            cell.outputs = [*pictures, *(each for each in cell.outputs if each.output_type == "stream")]


def pictures(cell: Cell) -> list[str]:
    """The PNGs of a cell, in base64."""
    return [each.data["image/png"] for each in cell.outputs if "image/png" in each.get("data", {})]


@contextmanager
def _environment(work: Path, figures: Path | None) -> Iterator[None]:
    """What the kernel inherits."""
    before = dict(os.environ)
    work.mkdir()
    os.environ["TINY_VLLM_WORK"] = str(work)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [before.get("PYTHONPATH")])])
    os.environ.pop("TINY_VLLM_FIGURES", None)
    if figures is not None:
        os.environ["TINY_VLLM_FIGURES"] = str(figures)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
