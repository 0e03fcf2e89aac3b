"""`source`: code on the page comes from its file alone, and a solved region of ours is never shown."""

from __future__ import annotations

import ast
import difflib
import re

from tiny_vllm.course.notebook.cuda_text import function
from tiny_vllm.errors import UserError


def excerpt(text: str, name: str | None, python: bool) -> str:
    """A whole file, or one function of it, without indentation of its own."""
    if name is None:
        return text.rstrip()
    return _python_function(text, name) if python else function(text, name).text(text)


def difference(old: str, new: str, old_name: str, new_name: str) -> str:
    """What changes from one text to the other, as a unified diff with one line of context; header comments left out."""
    before, after = (re.sub(r"\A(//.*\n)+", "", text).splitlines() for text in (old, new))
    lines = difflib.unified_diff(before, after, old_name, new_name, lineterm="", n=1)
    return "\n".join(line.rstrip() for line in lines) or f"{old_name} and {new_name} are the same"


def _python_function(text: str, name: str) -> str:
    kinds = (ast.FunctionDef, ast.ClassDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and node.name == name:
            lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
            return "\n".join(line[node.col_offset :] for line in lines)
    raise UserError(f"there is no function or class {name!r} in this file")
