"""Text as tokens, and the windows of twelve by which a leaked answer or a shared one is found."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Any

from tiny_vllm.device.source import strip_comments

WINDOW = 12
Window = tuple[str, ...]

_TOKEN = re.compile(r"[^\W\d]\w*|\d[\w.]*|<<=|>>=|<<|>>|\+\+|--|->|&&|\|\||::|[-+*/%&|^<>=!]=|\S")
_PYTHON_COMMENT = re.compile(r'"""(?:\\.|.)*?"""|"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'|#[^\n]*", re.DOTALL)
_LINE_PREFIX = re.compile(r"^[ \t]*(?://|[#>|+*-])+[ \t]?", re.MULTILINE)  # of a comment, a quotation, a diff


def tokens(text: str) -> list[str]:
    """Names, numbers, operators and single marks, in the order of the text; white space and line ends part them."""
    return _TOKEN.findall(text)


def windows(text: str, size: int = WINDOW) -> set[Window]:
    """Every run of `size` tokens of a text."""
    found = tokens(text)
    return {tuple(found[i : i + size]) for i in range(len(found) - size + 1)}


def code(text: str, python: bool) -> str:
    """The text without its comments; string literals stay."""
    if not python:
        return strip_comments(text)
    return _PYTHON_COMMENT.sub(lambda found: "" if found[0].startswith("#") else found[0], text)


def readings(name: str, text: str) -> Iterator[str]:
    """The ways in which a reader may see code in a file: as it stands, between comments, inside them, in a diff.

    A notebook is read cell by cell, with its outputs.
    """
    parts = _strings(json.loads(text)) if name.endswith(".ipynb") else [text]
    for part in parts:
        plain = html.unescape(part).replace("\\n", "\n")
        yield plain
        yield code(plain, name.endswith((".py", ".toml")))
        yield _LINE_PREFIX.sub("", plain)


def _strings(node: Any) -> Iterator[str]:
    """Every text of a JSON document; a list of lines, as notebooks keep them, is one text."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, list) and all(isinstance(line, str) for line in node):
        yield "".join(node)
    elif isinstance(node, (list, dict)):
        for child in node.values() if isinstance(node, dict) else node:
            yield from _strings(child)
