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
_BEGIN = re.compile(r"(?P<indent>[ \t]*)(?://|#) ?EXERCISE-BEGIN (\d+\.\d+) \((about \d+ lines?)\): (\S.*?)\s*")
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
        without_blocks = re.sub(r"/\*.*?\*/", "", self.body, flags=re.DOTALL)
        return bool(re.sub(r"^\s*(?://|#).*$", "", _UNSOLVED.sub("", without_blocks), flags=re.MULTILINE).strip())


def regions(text: str, name: str = "", strict: bool = True) -> list[Region]:
    """The regions in order. UserError for marks that are broken, nested, doubled or alone; name: of the file.

    strict=False: those whose two marks are there, whatever is wrong elsewhere.
    """
    lines, found = _lines(text), {}
    opened: tuple[int, str, re.Match[str]] | None = None
    for number, line in enumerate(lines, 1):
        if not _WORD.search(line):
            continue
        begin, end = _BEGIN.fullmatch(line.rstrip("\n")), _END.fullmatch(line.rstrip("\n"))
        if end and opened and end[1] == opened[1]:
            first, id, mark = opened
            body = "".join(lines[first : number - 1])
            found[id] = Region(id, mark[3], mark[4], first, number, body, mark["indent"])
            opened = None
            continue
        if strict and (fault := _fault(begin, end, opened and opened[1], found, line)):
            raise _broken(name, number, fault, opened[1] if opened else line)
        opened = (number, begin[2], begin) if begin and begin[2] not in found else None
    if strict and opened is not None:
        raise _broken(name, opened[0], f"the region of exercise {opened[1]} has no EXERCISE-END", opened[1])
    return list(found.values())


def skeleton(text: str, python: bool) -> str:
    """The file with every region emptied, both marks kept; in Python a line that raises stands between them."""

    def empty(region: Region) -> str:
        said = f"exercise {region.id} is not solved yet; put your lines in place of this one"
        return f'{region.indent}raise NotImplementedError("{said}")\n' if python else ""

    return fill(text, {region.id: empty(region) for region in regions(text)})


def bodies(text: str) -> dict[str, str]:
    """What stands in each region, by the exercise's id."""
    return {region.id: region.body for region in regions(text)}


def solved(text: str, name: str = "", strict: bool = True) -> dict[str, str]:
    """The bodies of the regions in which something is written."""
    return {region.id: region.body for region in regions(text, name, strict) if region.solved}


def outside(text: str) -> list[tuple[int, str]]:
    """(number, line) of all that stands in no region, the marks with it; white space at the ends is left out."""
    inside = {number for region in regions(text) for number in range(region.begin + 1, region.end)}
    return [(n, line.rstrip()) for n, line in enumerate(_lines(text.rstrip()), 1) if n not in inside]


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


def _fault(
    begin: re.Match[str] | None, end: re.Match[str] | None, opened: str | None, found: Mapping[str, Region], line: str
) -> str:
    """What is wrong with a mark that ends no region; "" where it begins one. opened: the region that it stands in."""
    if begin and opened:
        return f"exercise {begin[2]} begins inside the region of exercise {opened}"
    if begin:
        return f"exercise {begin[2]} begins a second time" if begin[2] in found else ""
    if end:
        return f"exercise {end[1]} ends " + (
            f"inside the region of exercise {opened}" if opened else "without a beginning"
        )
    return f"the mark {line.strip()[:80]!r} is broken"


def _broken(name: str, line: int, fault: str, exercise: str) -> UserError:
    """exercise: text that holds the number of the one whose marks are to be put back."""
    where = f"{name}, line {line}: " if name else f"line {line}: "
    number = re.search(r"\d+\.\d+", exercise)
    way = f"`tiny-vllm course reset {number[0] if number else 'EXERCISE'}` does, and keeps your file"
    return UserError(f"{where}{fault}; put both marks back as `tiny-vllm course start` wrote them, or {way}")
