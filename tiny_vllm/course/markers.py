"""The marks of an exercise in a .cu or .py file, and what is made of them: skeletons, and files filled in again.

    // EXERCISE-BEGIN 3.2 (about 4 lines): each thread adds up the squares of its own columns
    ...                                                    the region's body
    // EXERCISE-END 3.2

A mark is a line of its own; in Python it begins with `#`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tiny_vllm.errors import UserError

_WORD = re.compile(r"\bEXERCISE-(BEGIN|END)\b")
_BEGIN = re.compile(r"[ \t]*(?://|#) ?EXERCISE-BEGIN (\d+\.\d+) \((about \d+ lines?)\): (\S.*?)\s*")
_END = re.compile(r"[ \t]*(?://|#) ?EXERCISE-END (\d+\.\d+)\s*")
_UNSOLVED = re.compile(r'\s*raise NotImplementedError\("exercise \d+\.\d+ is not solved yet[^"]*"\)')


@dataclass(frozen=True)
class Region:
    """What stands between two marks.

    about: "about 4 lines". task: what to do. begin, end: line numbers of the marks, from 1. body: the lines between,
    verbatim, with their ends. indent: the white space before the mark.
    """

    id: str
    about: str
    task: str
    begin: int
    end: int
    body: str
    indent: str

    @property
    def solved(self) -> bool:
        """Whether something was written there: more than comments, blank lines and the skeleton's own line."""
        return bool(_code(self.body).strip())


def regions(text: str, name: str = "") -> list[Region]:
    """The regions in order. UserError for marks that are broken, nested, doubled or alone; name: of the file."""
    lines = _lines(text)
    found: list[Region] = []
    opened: tuple[int, re.Match[str]] | None = None
    for number, line in enumerate(lines, 1):
        if not _WORD.search(line):
            continue
        begin, end = _BEGIN.fullmatch(line.rstrip("\n")), _END.fullmatch(line.rstrip("\n"))
        if begin and opened is None and begin[1] not in {region.id for region in found}:
            opened = number, begin
        elif end and opened is not None and end[1] == opened[1][1]:
            first, mark = opened
            indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
            found.append(Region(mark[1], mark[2], mark[3], first, number, "".join(lines[first : number - 1]), indent))
            opened = None
        else:
            raise _broken(name, number, _fault(begin, end, opened, line))
    if opened is not None:
        raise _broken(name, opened[0], f"the region of exercise {opened[1][1]} has no EXERCISE-END")
    return found


def skeleton(text: str, python: bool) -> str:
    """The file with every region emptied, both marks kept; in Python a line that raises stands between them."""

    def empty(region: Region) -> str:
        said = f"exercise {region.id} is not solved yet; put your lines in place of this one"
        return f'{region.indent}raise NotImplementedError("{said}")\n' if python else ""

    return fill(text, {region.id: empty(region) for region in regions(text)})


def bodies(text: str) -> dict[str, str]:
    """What stands in each region, by the exercise's id."""
    return {region.id: region.body for region in regions(text)}


def fill(text: str, bodies: Mapping[str, str]) -> str:
    """The file with these bodies between the marks; regions that are not named stay as they are.

    Line ends become \\n, and the last line has one.
    """
    lines, pieces, done = _lines(text), [], 0
    for region in regions(text):
        pieces += lines[done : region.begin]
        pieces += _lines(bodies.get(region.id, region.body))
        done = region.end - 1
    return "".join([*pieces, *lines[done:]])


def _lines(text: str) -> list[str]:
    """Lines with their ends, every end a \\n; form feeds and the like are no ends, as compilers see it."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    whole = [f"{line}\n" for line in text.split("\n")]
    return whole[:-1] if text.endswith("\n") or not text else whole


def _code(body: str) -> str:
    """A body without comments and without the line that a skeleton raises."""
    without_blocks = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    return re.sub(r"^\s*(?://|#).*$", "", _UNSOLVED.sub("", without_blocks), flags=re.MULTILINE)


def _fault(
    begin: re.Match[str] | None, end: re.Match[str] | None, opened: tuple[int, re.Match[str]] | None, line: str
) -> str:
    if begin and opened:
        return f"exercise {begin[1]} begins inside the region of exercise {opened[1][1]}"
    if begin:
        return f"exercise {begin[1]} begins a second time"
    if end:
        inside = f"inside the region of exercise {opened[1][1]}" if opened else "without a beginning"
        return f"exercise {end[1]} ends {inside}"
    return f"the mark {line.strip()[:80]!r} is broken"


def _broken(name: str, line: int, fault: str) -> UserError:
    where = f"{name}, line {line}: " if name else f"line {line}: "
    return UserError(f"{where}{fault}; put both marks back as `tiny-vllm course start` wrote them, or `course reset`")
