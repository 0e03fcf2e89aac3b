"""Which kernels of a text may have to wait for other threads: the rest run as plain loops, several times faster."""

from __future__ import annotations

import re
from functools import lru_cache

from tiny_vllm.device.source import strip_comments

# `.sync.` stands in the name of every PTX instruction that a warp does as one ("mma.sync.aligned...").
_WAIT = re.compile(r"\b(?:__sync\w+|__\w+_sync|__activemask)\b|\w\.sync\.\w")
_PARAMETERS = r"\((?:[^(){};]|\([^()]*\))*\)"
_FUNCTION = re.compile(rf"\b(\w+)\s*(?:<[\w\s:,]*>\s*)?{_PARAMETERS}\s*(?:const\s*|noexcept\s*)*\{{")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n\\]|\\.|\\\n)*)", re.MULTILINE)
_STATEMENTS = {"if", "for", "while", "switch", "catch"}
_NO_FUNCTION = re.compile(r"(?:(?<!:):|,|\boperator)\s*$")  # before a member's initial value, a conversion


def may_wait(code: str, kernel: str) -> bool:
    """Whether the kernel, or a function or macro that it names, however indirectly, has a barrier or warp operation.

    Told from the text, and in doubt the answer is yes: a wait that lies in no function of a name (an operator, a
    constructor), or names put together by a macro, make every kernel of the text one that waits.
    """
    bodies, rest_waits = _bodies(code)
    if rest_waits:
        return True
    seen, todo = set(), {re.split(r"<", kernel)[0].rpartition("::")[2].strip()}
    while todo:
        name = todo.pop()
        seen.add(name)
        body = bodies.get(name, "")
        if _WAIT.search(body):
            return True
        todo |= (set(re.findall(r"\w+", body)) & bodies.keys()) - seen
    return False


@lru_cache(maxsize=32)
def _bodies(code: str) -> tuple[dict[str, str], bool]:
    """Text by function and macro name (functions of one name together), and whether any other text waits."""
    text = strip_comments(code)
    if not _WAIT.search(text):
        return {}, False
    if "##" in text:
        return {}, True
    bodies: dict[str, str] = {}
    for match in _MACRO.finditer(text):
        bodies[match[1]] = bodies.get(match[1], "") + match[2]
    text, rest, done = _MACRO.sub(" ", text), [], 0
    for match in _FUNCTION.finditer(text):
        if match.start() < done or match[1] in _STATEMENTS:
            continue  # inside a body that is already taken
        if _NO_FUNCTION.search(text, done, match.start()):
            continue
        rest.append(text[done : match.start()])
        done = _closing_brace(text, match.end())
        bodies[match[1]] = bodies.get(match[1], "") + text[match.end() : done]
    rest.append(text[done:])
    return bodies, any(_WAIT.search(part) for part in rest)


def _closing_brace(text: str, at: int) -> int:
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(text)
