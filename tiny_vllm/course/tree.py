"""Trees without answers: what a student's bundle holds, and what a submission's process sees."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tiny_vllm.course import markers
from tiny_vllm.course.chapter import Chapter
from tiny_vllm.course.skeletons import released_of
from tiny_vllm.course.tokens import Window, code, readings, windows
from tiny_vllm.device.source import LEFT_OUT

ENGINE = (
    "tiny_vllm",
    "kernels",
    "pyproject.toml",
    "chapters/__init__.py",
    "chapters/_cases.py",
    "chapters/_figures.py",
)
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


def worked_windows(chapters: Sequence[Chapter]) -> dict[Window, str]:
    """The windows of the worked regions, and which exercise each is of; none that the file's given lines show too."""
    found: dict[Window, str] = {}
    for chapter in chapters:
        for name in chapter.files:
            text, python = (chapter.folder / name).read_text(encoding="utf-8"), name.endswith(".py")
            given = windows(code(markers.fill(text, dict.fromkeys(markers.bodies(text), "")), python))
            for id, body in markers.bodies(text).items():
                found |= dict.fromkeys(windows(code(body, python)) - given, id)
    return found


def leaks(folder: Path, worked: Mapping[Window, str], hints: Iterable[str] = ()) -> Iterator[tuple[Path, str, Window]]:
    """(file, exercise, window) of each file that shows an answer; a chapter.toml may hold the level-3 hints."""
    allowed = {window for hint in hints for window in windows(hint)}
    for file in sorted(folder.rglob("*")):
        try:
            text = "" if file.is_dir() or file.suffix == ".png" else file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            text = ""  # arrays and pictures
        for reading in readings(file.name, text):
            shown = windows(reading) & worked.keys() - (allowed if file.name == "chapter.toml" else set())
            if shown:
                window = min(shown)
                yield file, worked[window], window
                break


def _leave_out(kernels: Path, chapters: Sequence[Chapter]) -> list[str]:
    gone = {file.name for file, _, _ in leaks(kernels, worked_windows(chapters))} | _counterparts(chapters)
    texts = {file.name: file.read_text(encoding="utf-8") for file in kernels.glob("*.cu*")}
    while more := {n for n, text in texts.items() if n not in gone and any(f'"{each}"' in text for each in gone)}:
        gone |= more
    for name in gone:
        (kernels / name).unlink(missing_ok=True)
    (kernels / LEFT_OUT).write_text("".join(f"{name}\n" for name in sorted(gone)), encoding="utf-8")
    return sorted(gone)


def _counterparts(chapters: Sequence[Chapter]) -> set[str]:
    """What the engine runs in place of these chapters' kernels, as the first line of each of them says."""
    files = [chapter.folder / name for chapter in chapters for name in chapter.files if name.endswith(".cu")]
    first_lines = [file.read_text(encoding="utf-8").partition("\n")[0] for file in files]
    return {name for line in first_lines for name in re.findall(r"\bkernels/(\w+\.cuh?)", line)}
