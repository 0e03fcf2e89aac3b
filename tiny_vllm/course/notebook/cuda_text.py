"""Finding functions in the text of a .cu file, without a parser."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tiny_vllm.errors import UserError

_COMMENT_OR_STRING = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL)
_NAME_AND_PARENTHESIS = re.compile(r"\b(\w+)\s*\(")
_BEHIND_PARAMETERS = re.compile(r"\s*\{")


@dataclass(frozen=True)
class Function:
    """Where a function stands: offsets into the text of its first character, `(`, `)`, `{` and `}`."""

    name: str
    start: int
    open_parenthesis: int
    close_parenthesis: int
    open_brace: int
    close_brace: int

    def text(self, source: str) -> str:
        return source[self.start : self.close_brace + 1]


def blanked(text: str) -> str:
    """The text with comments and strings replaced by as many spaces: what is left is code, at its old offsets."""
    return _COMMENT_OR_STRING.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def functions(text: str) -> list[Function]:
    """The functions that are defined at the top level of a file, in order, with the comment lines above each."""
    code, found, at = blanked(text), [], 0
    while match := _NAME_AND_PARENTHESIS.search(code, at):
        at = match.end()
        close = _closing(code, match.end() - 1, "()")
        brace = _BEHIND_PARAMETERS.match(code, close + 1)
        if brace is None or match[1].startswith("__"):  # a declaration, or __launch_bounds__(256)
            continue
        end = _closing(code, brace.end() - 1, "{}")
        found.append(Function(match[1], _start(text, match.start()), match.end() - 1, close, brace.end() - 1, end))
        at = end
    return found


def function(text: str, name: str) -> Function:
    """The function of that name, or the only one whose name ends in _name: "tree" finds rms_norm_tree.

    UserError when there is none, or more than one.
    """
    there = functions(text)
    found = [each for each in there if each.name == name] or [each for each in there if each.name.endswith(f"_{name}")]
    if len(found) != 1:
        names = ", ".join(each.name for each in there) or "none"
        raise UserError(f"{len(found) or 'no'} functions are called {name!r} in this file; it has {names}")
    return found[0]


def _start(text: str, at: int) -> int:
    """The first character of the declaration around `at`, with the comment lines right above it."""
    start = text.rfind("\n", 0, at) + 1
    while start:
        above = text.rfind("\n", 0, start - 1) + 1
        line = text[above : start - 1].strip()
        is_comment = line.startswith(("//", "/*", "*"))
        if not line or line.startswith("#") or (line[-1] in ";}" and not is_comment):
            break
        start = above
    return start


def _closing(code: str, at: int, pair: str) -> int:
    """Where the bracket at `at` closes; UserError when it does not."""
    depth = 0
    for index in range(at, len(code)):
        depth += (code[index] == pair[0]) - (code[index] == pair[1])
        if depth == 0:
            return index
    raise UserError(f"line {code.count(chr(10), 0, at) + 1}: this {pair[0]!r} is never closed; close it")
