"""`tiny-vllm course slides 3 --out slides.md`: a slide for each cell of the page that is tagged "slide".

A slide has the heading that the cell stands under, its picture, what it prints and what it asks: no second text.
The Markdown is Marp's: `marp slides.md` makes HTML or PDF of it, `pandoc -t revealjs` too.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny_vllm.course.chapter import chapter
from tiny_vllm.course.files import read_source
from tiny_vllm.errors import UserError

_FENCE, _HEADING = r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```[ \t]*$", r"^#{1,4} (?P<heading>[^\n]+)"
_PICTURE = r"^!\[(?P<alt>[^]]*)\]\((?P<path>[^)\s]+)\)"
_ASKED = re.compile(r"^\d+\.[a-z]  .*\n +your prediction.*\n?", re.MULTILINE)  # the question once more
_BLOCK = re.compile(f"{_FENCE}|{_HEADING}|{_PICTURE}", re.MULTILINE | re.DOTALL)


@dataclass
class Slide:
    """claim: a heading. picture: its path beside the page. output: what the cell prints. question: a predict(...)."""

    claim: str
    picture: str = ""
    alt: str = ""
    output: str = ""
    question: str = ""


def add_parser(commands: Any) -> None:
    """The options of `slides`."""
    parser = commands.add_parser("slides", help="slides out of a chapter's page")
    parser.add_argument("chapter", type=int, metavar="CHAPTER")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="Markdown for Marp: slides.md")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """UserError where the page has no such cell."""
    chosen, out = chapter(arguments.chapter), arguments.out
    deck = slides(read_source(chosen.folder / "README.md"))
    if not deck:
        raise UserError(f'{chosen.name}/README.md has no cell tagged slide; write ```python tags=["slide"] over some')
    out.write_text(markdown(deck, chosen.folder, out), encoding="utf-8")
    print(f"{out}: {len(deck)} slides; `marp {out}` makes HTML of it")
    return 0


def slides(page: str) -> list[Slide]:
    """The slides of a page, in order. A cell that shows a figure takes the section's next picture; a question is the
    cell's own, else the section's next, else the text of the exercise that the cell holds."""
    deck: list[Slide] = []
    blocks = [*_BLOCK.finditer(page)]
    for heading, section in _sections(blocks):
        tagged = {block: '"slide"' in (block["info"] or "") for block in section}
        pictures = [block for block in section if block["path"]]
        questions = [question for block in section if not tagged[block] and (question := _question(block["body"]))]
        for block, after in zip(section, [*section[1:], None]):
            if tagged[block]:
                own = _question(block["body"]) or _exercise(block["body"], page)
                slide = Slide(heading, question=own or (questions.pop(0) if questions else ""))
                if after and after["info"] == "text":
                    slide.output = _ASKED.sub("", after["body"]).rstrip()
                if "show(" in block["body"] and pictures:
                    slide.picture, slide.alt = pictures[0]["path"], pictures.pop(0)["alt"]
                deck.append(slide)
    return deck


def _sections(blocks: list[re.Match[str]]) -> Iterator[tuple[str, list[re.Match[str]]]]:
    """(heading, the blocks below it)."""
    starts = [i for i, block in enumerate(blocks) if block["heading"]]
    for start, end in zip(starts, [*starts[1:], len(blocks)], strict=True):
        yield blocks[start]["heading"], blocks[start + 1 : end]


def markdown(deck: list[Slide], folder: Path, out: Path) -> str:
    """A rule between slides. folder: the page's; pictures are linked from out."""
    pieces = []
    for each in deck:
        link = os.path.relpath(folder.resolve() / each.picture, out.resolve().parent)
        parts = [f"# {each.claim}", f"![{each.alt}]({link})" if each.picture else ""]
        parts += [f"```text\n{each.output}\n```" if each.output else "", f"> {each.question}" if each.question else ""]
        pieces.append("\n\n".join(filter(None, parts)))
    return "---\nmarp: true\n---\n\n" + "\n\n---\n\n".join(pieces) + "\n"


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
