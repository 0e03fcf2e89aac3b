"""`tiny-vllm course slides 3 --out slides.md`: a slide for each cell of the page that is tagged "slide".

A slide has the heading that the cell stands under, its picture, what it prints and what it asks: no second text.
The Markdown is Marp's: `marp slides.md` makes HTML or PDF of it, `pandoc -t revealjs` too. `--out slides.html` needs
neither, but nbconvert; its pictures are in the file, and reveal.js comes over the network when it is shown.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tiny_vllm.course.chapter import chapter
from tiny_vllm.course.files import read_source
from tiny_vllm.errors import UserError

_FENCE, _HEADING = r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```[ \t]*$", r"^#{1,4} (?P<heading>[^\n]+)"
_PICTURE = r"^!\[(?P<alt>[^]]*)\]\((?P<path>[^)\s]+)\)"
_ASKED = re.compile(r"^\d+\.[a-z]  .*\n +your prediction.*\n?", re.MULTILINE)  # the question once more
_BLOCK = re.compile(f"{_FENCE}|{_HEADING}|{_PICTURE}", re.MULTILINE | re.DOTALL)


def add_parser(commands: Any) -> None:
    """The options of `slides`."""
    parser = commands.add_parser("slides", help="slides out of a chapter's page")
    parser.add_argument("chapter", type=int, metavar="CHAPTER")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="slides.md for Marp, or slides.html")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """UserError where the page has no such cell."""
    chosen, out = chapter(arguments.chapter), arguments.out
    html = out.suffix == ".html"
    if not html and out.suffix != ".md":
        raise UserError(f"{out} ends neither in .md nor in .html; `marp slides.md --pdf` makes a PDF of slides.md")
    pictures = "." if html else os.path.relpath(chosen.folder.resolve(), out.resolve().parent)
    deck = slides(read_source(chosen.folder / "README.md"), pictures)
    if not deck:
        raise UserError(f'{chosen.name}/README.md has no cell tagged slide; write ```python tags=["slide"] over some')
    out.write_text(reveal(deck, chosen.folder) if html else marp(deck), encoding="utf-8")
    print(f"{out}: {len(deck)} slides; " + ("open it in a browser" if html else f"`marp {out}` makes HTML of it"))
    return 0


def slides(page: str, pictures: str) -> list[str]:
    """The Markdown of each slide of a page, in order. pictures: the way from the slides to the page's folder."""
    sections: list[tuple[str, list[re.Match[str]]]] = []
    for block in _BLOCK.finditer(page):
        if block["heading"]:
            sections.append((block["heading"], []))
        elif sections:
            sections[-1][1].append(block)
    return [slide for heading, blocks in sections for slide in _slides(heading, blocks, page, pictures)]


def _slides(heading: str, blocks: Sequence[re.Match[str]], page: str, folder: str) -> Iterator[str]:
    """Those of a section. A cell that shows a figure takes the section's next picture; a question is the cell's own,
    else the text of the exercise that the cell holds, else the section's next."""
    tagged = {block: '"slide"' in (block["info"] or "") for block in blocks}
    pictures = (f"![{block['alt']}]({folder}/{block['path']})" for block in blocks if block["path"])
    questions = filter(None, (_question(block["body"]) for block in blocks if not tagged[block]))
    for block, after in zip(blocks, [*blocks[1:], None]):
        if tagged[block]:
            body = block["body"]
            picture = next(pictures, "") if "show(" in body else ""
            output = _ASKED.sub("", after["body"]).rstrip() if after and after["info"] == "text" else ""
            question = _question(body) or _exercise(body, page) or next(questions, "")
            parts = [picture, output and f"```text\n{output}\n```", question and f"> {question}"]
            yield "\n\n".join([f"# {heading}", *filter(None, parts)])


def marp(deck: Sequence[str]) -> str:
    """Markdown with a rule between slides."""
    return "---\nmarp: true\n---\n\n" + "\n\n---\n\n".join(deck) + "\n"


def reveal(deck: Sequence[str], folder: Path) -> str:
    """A page of HTML that holds the pictures of a folder. UserError where nbconvert is not installed."""
    try:
        from nbconvert import SlidesExporter
        from nbformat import v4
    except ImportError:
        raise UserError("slides.html needs nbconvert: pip install 'tiny-vllm[notebooks]'; slides.md does not") from None
    cells = [v4.new_markdown_cell(slide, metadata={"slideshow": {"slide_type": "slide"}}) for slide in deck]
    exporter = SlidesExporter(embed_images=True)
    return exporter.from_notebook_node(v4.new_notebook(cells=cells), {"metadata": {"path": str(folder)}})[0]


def _question(cell: str | None) -> str:
    """What the first predict("3.a", "question", ...) of a cell asks."""
    with suppress(SyntaxError, ValueError):  # a cell magic; a question that is computed
        for node in ast.walk(ast.parse(cell or "")):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "predict" and len(node.args) > 1:
                return str(ast.literal_eval(node.args[1]))
    return ""


def _exercise(cell: str, page: str) -> str:
    """The paragraph of the page that sets the exercise of a cell."""
    magic = re.match(r"%%exercise (\S+)", cell)
    found = magic and re.search(rf"^\*\*Exercise {re.escape(magic[1])}\*\*.*?(?=\n\n)", page, re.MULTILINE | re.DOTALL)
    return found[0].replace("\n", " ") if found else ""
