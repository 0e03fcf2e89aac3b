"""The files that check one exercise alone: the skeleton, the exercise's region as it was written, and stand-ins.

A stand-in (stand_ins/3_3.cu) fills another exercise's region, rightly but in another way than the worked solution, so
that an unsolved exercise blocks no other and no answer shows.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from tiny_vllm.course import markers
from tiny_vllm.course.answer import Answer, region
from tiny_vllm.course.chapter import Chapter
from tiny_vllm.course.files import read_source, write_atomic


def compose(chapter: Chapter, source: Path, exercise: str, target: Path) -> None:
    """Write target/chNN_name/: every file of the chapter with regions, this exercise's body taken from `source`.

    source: a folder of chapters, as work/ is. Messages name the lines of the source's own file. UserError where the
    source has no such file, or no such region in it.
    """
    answer = Answer(chapter, chapter.exercise(exercise), source)
    for file in chapter.files:
        text = markers.skeleton(read_source(chapter.folder / file), file.endswith(".py"))
        fillings = dict(stand_ins(chapter, text))
        if file == answer.exercise.file:
            written = answer.text
            fillings[exercise] = region(written, exercise, file).body
            text = numbered(markers.fill(text, fillings), written, answer.name)
        else:
            text = markers.fill(text, fillings)
        write_atomic(target / chapter.name / file, text)


def stand_ins(chapter: Chapter, text: str) -> Iterator[tuple[str, str]]:
    """(exercise, body) for each region of a file that has a stand-in."""
    for each in markers.regions(text):
        for suffix in (".cu", ".py"):
            file = chapter.folder / "stand_ins" / f"{each.id.replace('.', '_')}{suffix}"
            if file.is_file():
                yield each.id, textwrap.indent(_without_header(read_source(file)), each.indent)


def _without_header(text: str) -> str:
    lines = textwrap.dedent(text).splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if line.strip() and not line.startswith(("//", "#"))), len(lines))
    return "".join(lines[first:])


def numbered(text: str, written: str, name: str) -> str:
    """The text with #line directives: behind each mark it has the line numbers of the file that was written.

    In Python they are comments, which tiny_vllm.sandbox reads when it tells of an exception.
    """
    theirs = {each.id: each for each in markers.regions(written)}
    lines = text.splitlines(keepends=True)
    for each in reversed(markers.regions(text)):
        if each.id in theirs:
            lines.insert(each.end - 1, f'#line {theirs[each.id].end} "{name}"\n')
            lines.insert(each.begin, f'#line {theirs[each.id].begin + 1} "{name}"\n')
    return "".join(lines)
