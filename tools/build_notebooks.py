"""notebooks/ from the chapters' pages: python -m tools.build_notebooks [--check | --solved DIR | --executed DIR].

A notebook keeps the output of compared cells, which the page states, and the PNGs of figure cells, which come from a
run. Without an option every notebook is built, run and written, and the chapter's figures/*.svg with it; a cell that
prints something else than its page is an error, or with --accept the page is rewritten.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbformat

from tiny_vllm.course import chapters_folder
from tiny_vllm.course.chapter import Chapter, chapters
from tiny_vllm.course.figures import PNG_BYTES
from tiny_vllm.course.files import read_source
from tools.first_cells import COLAB, MASTER_COPY, first_cells
from tools.lesson_page import Notebook, exercise_of, is_figure, page_cells, solve, tags, with_outputs
from tools.notebook_runs import NOTEBOOKS, differences, execute, keep_pictures, pictures
from tools.worked import answers_in, worked_answers, worked_bodies

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class DiffersError(Exception):
    """A cell printed something else than its page says, or shows what it must not."""


def build(chapter: Chapter, solved: bool = False) -> Notebook:
    """The chapter's notebook without pictures; nothing is executed. solved: with the worked regions filled in."""
    cells = [*first_cells(chapter), *page_cells(read_source(chapter.folder / "README.md"))]
    if solved:
        bodies, answers = worked_bodies(chapter), worked_answers(chapter)
        for cell in cells:
            solve(cell, bodies, answers)
    for number, cell in enumerate(cells):
        cell["id"] = f"ch{chapter.number:02d}-{number:03d}"
    return nbformat.v4.new_notebook(cells=cells, metadata=METADATA)


def name_of(chapter: Chapter) -> str:
    """ch03_rms_norm -> 03_rms_norm.ipynb"""
    return f"{chapter.name.removeprefix('ch')}.ipynb"


def bare(notebook: Notebook) -> list[dict[str, object]]:
    """What a rebuild must give again: ids, kinds, sources, metadata, and outputs but for the pictures."""
    cells = []
    for cell in notebook.cells:
        outputs = [dict(each) for each in cell.get("outputs", []) if each.output_type == "stream"]
        cells.append({**{key: cell[key] for key in ("id", "cell_type", "source", "metadata")}, "outputs": outputs})
    return cells


def write(notebook: Notebook, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook, version=4) + "\n", encoding="utf-8")


def stale(chapter: Chapter) -> str | None:
    """What is wrong with the committed notebook, in a sentence; None when it is what its page builds."""
    path = NOTEBOOKS / name_of(chapter)
    if not path.is_file():
        return f"notebooks/{path.name} is missing"
    committed, built = nbformat.read(path, as_version=4), build(chapter)
    if bare(committed) != bare(built) or dict(committed.metadata) != METADATA:
        return f"notebooks/{path.name} is not what its page builds"
    for cell in filter(is_figure, committed.cells):
        if not pictures(cell):
            return f"notebooks/{path.name}: {cell.source.splitlines()[0]} has no picture"
        if max(map(len, pictures(cell))) > PNG_BYTES * 4 / 3 + 100:  # base64
            return f"notebooks/{path.name}: {cell.source.splitlines()[0]} has a picture above 25 KB"
    return None


def build_committed(chapter: Chapter, accept: bool) -> None:
    """Build, run, compare, and write the notebook and the page's figures."""
    notebook, executed = build(chapter), build(chapter)
    execute(executed, chapter.folder / "figures")
    if accept:
        page = chapter.folder / "README.md"
        page.write_text(with_outputs(read_source(page), executed.cells), encoding="utf-8")
        notebook = build(chapter)
    if found := differences(notebook, executed):
        raise DiffersError("\n".join([f"{chapter.name}/README.md:", *found]))
    keep_pictures(notebook, executed)
    write(notebook, NOTEBOOKS / name_of(chapter))


def build_solved(chapter: Chapter, folder: Path) -> None:
    """The solved notebook, not executed; pictures from the committed one."""
    notebook = build(chapter, solved=True)
    keep_pictures(notebook, nbformat.read(NOTEBOOKS / name_of(chapter), as_version=4))
    write(notebook, folder / name_of(chapter))


def build_executed(chapter: Chapter, folder: Path) -> None:
    """For the book: run as solved, every output kept; exercise cells show what a reader finds, never the answer."""
    executed = build(chapter, solved=True)
    execute(executed)
    for cell, open_cell in zip(executed.cells, build(chapter).cells, strict=True):
        if exercise_of(cell):
            cell.source = open_cell.source
    executed.cells = [cell for cell in executed.cells if not {MASTER_COPY, COLAB} & set(tags(cell))]
    path = folder / name_of(chapter)
    write(executed, path)
    if shown := answers_in(folder, chapter):
        path.unlink()
        raise DiffersError(f"{chapter.name}: a cell's output shows the answer of exercise {shown[0]}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.build_notebooks", description=__doc__.partition("\n")[0])
    parser.add_argument("chapters", nargs="*", type=int, metavar="N", help="chapters to build; all, if left out")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--check", action="store_true", help="compare with notebooks/, execute nothing")
    way.add_argument("--solved", type=Path, metavar="DIR", help="write the solved set, execute nothing")
    way.add_argument("--executed", type=Path, metavar="DIR", help="run the solved set, keep every output")
    way.add_argument("--accept", action="store_true", help="rewrite the pages' outputs by what the cells print")
    options = parser.parse_args(arguments)
    written = [each for each in chapters(chapters_folder()) if (each.folder / "README.md").is_file()]
    chosen = [each for each in written if not options.chapters or each.number in options.chapters]
    wrong: list[str] = []
    for chapter in chosen:
        if options.check:
            wrong += filter(None, [stale(chapter)])
        elif options.solved:
            build_solved(chapter, options.solved)
        elif options.executed:
            build_executed(chapter, options.executed)
        else:
            build_committed(chapter, options.accept)
    print("\n".join(wrong) or f"{len(chosen)} notebooks", file=sys.stderr if wrong else sys.stdout)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DiffersError as error:
        sys.exit(str(error))
