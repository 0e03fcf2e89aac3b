"""Trees without answers: what a student's bundle holds, and what a submission's process sees."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from tiny_vllm.course.chapter import Chapter
from tiny_vllm.course.files import read_source
from tiny_vllm.course.skeletons import released_of
from tiny_vllm.device.source import LEFT_OUT
from tiny_vllm.grading.windows import leaks, worked_windows

_CHAPTERS = ("chapters/__init__.py", "chapters/_cases.py", "chapters/_figures.py")
ENGINE = ("tiny_vllm", "kernels", "pyproject.toml", *_CHAPTERS)
_LECTURERS = shutil.ignore_patterns("mutants", "lecturer", "__pycache__", ".*", "*.pyc", "*.so")


def copy_tree(target: Path, chapters: Sequence[Chapter], parts: Iterable[str] = ()) -> list[str]:
    """Write the package, kernels, these chapters as skeletons and those that they import into target.

    parts: what else is taken, by its path below the checkout. Returns the files of kernels/ that are left out: a
    chapter's counterpart, those that hold a window of a worked region, and those that include one.
    """
    root = chapters[0].folder.parents[1]
    for part in (*ENGINE, *parts, *(f"chapters/{name}" for name in _imported(chapters))):
        _copy(root / part, target / part)
    for chapter in chapters:
        for name in chapter.files:
            file = target / "chapters" / chapter.name / name
            file.write_text(released_of(chapter, name), encoding="utf-8")
    return _leave_out(target / "kernels", chapters)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=_LECTURERS, dirs_exist_ok=True)
    elif source.is_file():
        shutil.copyfile(source, target)


def _imported(chapters: Sequence[Chapter]) -> set[str]:
    """The folders of these chapters and of all that they import, directly or not."""
    found: set[str] = set()
    waiting = [chapter.name for chapter in chapters]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            for file in (chapters[0].folder.parent / name).rglob("*.py"):
                waiting += re.findall(r"\bchapters\.(ch\d\d_\w+)", file.read_text(encoding="utf-8"))
    return found


def _leave_out(kernels: Path, chapters: Sequence[Chapter]) -> list[str]:
    """Take away the kernels that show an answer, that run in place of one, or that include such a file."""
    gone = {file.name for file, _, _ in leaks(kernels, worked_windows(chapters))}
    for file in (chapter.folder / name for chapter in chapters for name in chapter.files if name.endswith(".cu")):
        gone |= set(re.findall(r"\bkernels/(\w+\.cuh?)", read_source(file).partition("\n")[0]))  # in the first line
    texts = {file.name: read_source(file) for file in kernels.glob("*.cu*")}
    while more := {n for n, text in texts.items() if n not in gone and any(f'"{each}"' in text for each in gone)}:
        gone |= more
    for name in gone:
        (kernels / name).unlink(missing_ok=True)
    (kernels / LEFT_OUT).write_text("".join(f"{name}\n" for name in sorted(gone)), encoding="utf-8")
    return sorted(gone)
