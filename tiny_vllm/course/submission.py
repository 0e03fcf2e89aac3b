"""What students handed in, as texts by name: folders, zips, Moodle's zip of all. Nothing is unpacked to disk."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tiny_vllm.errors import UserError

MAX_FILE, MAX_ZIP = 256 << 10, 32 << 20  # bytes of a text that is read, of a zip inside a zip
_UNREADABLE = (ValueError, OSError, zipfile.BadZipFile, RuntimeError, zlib.error)  # RuntimeError: encrypted
_MOODLE = re.compile(r"(.+?)_(\d+)_assignsubmission_file_?(.*)")
_WORK = re.compile(r"ch\d\d_\w+|work")
_STRAY = re.compile(r"__MACOSX|\.DS_Store|\._.*|__pycache__|\.ipynb_checkpoints|desktop\.ini|Thumbs\.db")


@dataclass
class Submission:
    """A student's files by their name in work/ ("ch03_rms_norm/rms_norm.cu"); problem: why some could not be read."""

    student: str
    files: dict[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class _Entry:
    """A file, a folder (nothing to read), or a zip with a problem, by its path below the submissions."""

    parts: tuple[str, ...]
    read: Callable[[int], bytes] | None = None  # at most so many bytes
    problem: str = ""


def submissions(path: Path, wanted: Iterable[str]) -> list[Submission]:
    """The submissions in a folder or a zip, sorted by student; of each only the wanted files, wherever they lie in it.

    UserError where there is no submission.
    """
    by_student: dict[str, list[_Entry]] = defaultdict(list)
    for entry in _entries(path):
        by_student[entry.parts[0]].append(entry)
    if not by_student:
        raise UserError(f"{path} holds no submission; it needs a folder or a zip named for each student")
    names = _names(by_student)
    found = [_submission(names[top], entries, list(wanted)) for top, entries in by_student.items()]
    return sorted(found, key=lambda each: each.student)


def _names(tops: Iterable[str]) -> dict[str, str]:
    """What Moodle puts around a name is taken off; its number stays where two have the same name."""
    parsed = {top: _MOODLE.fullmatch(top) for top in tops}
    short = {top: match[1] if match else top for top, match in parsed.items()}
    twice = {name for name in short.values() if list(short.values()).count(name) > 1}
    return {
        top: f"{name} ({match[2]})" if (match := parsed[top]) and name in twice else name for top, name in short.items()
    }


def _submission(student: str, entries: Sequence[_Entry], wanted: Sequence[str]) -> Submission:
    result = Submission(student, problem="; ".join(entry.problem for entry in entries if entry.problem))
    for entry in sorted(entries, key=lambda each: len(each.parts), reverse=True):  # the shallowest one stays
        for name in wanted:
            if entry.read and entry.parts[1:][-len(Path(name).parts) :] == Path(name).parts:
                try:
                    result.files[name] = _text(entry.read(MAX_FILE + 1))
                except _UNREADABLE as error:
                    result.problem = f"{'/'.join(entry.parts[1:])}: {error}"
    return result


def _text(data: bytes) -> str:
    if len(data) > MAX_FILE:
        raise ValueError(f"is larger than {MAX_FILE >> 10} KiB")
    try:
        text = data.decode("utf-8-sig")  # some editors of Windows put a mark in front
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    if "\0" in text:
        raise ValueError("holds a zero byte")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _entries(path: Path) -> Iterator[_Entry]:
    """Everything that was handed in. A folder or a zip that is one student's work/ is that student's submission."""
    if not path.exists():
        raise UserError(f"{path} does not exist; name the folder or the zip of the submissions")
    if path.is_file():
        yield from _zip(path, (), path.stem)
        return
    single = any(_WORK.fullmatch(child.name) for child in path.iterdir())
    for file_path in sorted(path.rglob("*")):
        parts = file_path.relative_to(path.parent if single else path).parts
        if file_path.is_symlink() or any(map(_STRAY.fullmatch, parts)):
            continue  # a link could lead to a file that is not the student's
        if file_path.is_dir():
            yield _Entry(parts)
        elif file_path.suffix.lower() == ".zip":
            yield from _zip(file_path, parts[:-1], file_path.stem)
        elif len(parts) > 1:
            yield _Entry(parts, partial(_read, partial(file_path.open, "rb")))


def _zip(file: Path | IO[bytes], prefix: tuple[str, ...], stem: str, inner: bool = False) -> Iterator[_Entry]:
    """The members of a zip, below `prefix` or its own name; a zip of all students has neither."""
    try:
        archive = zipfile.ZipFile(file)
        members = [(info, PurePosixPath(info.filename.replace("\\", "/"))) for info in archive.infolist()]
    except _UNREADABLE as error:
        yield _Entry(prefix or (stem,), problem=f"{stem}.zip is no zip that can be read: {error}")
        return
    members = [(info, at) for info, at in members if at.parts and not any(map(_STRAY.fullmatch, at.parts))]
    of_all = bool(members) and not inner and all(_MOODLE.fullmatch(at.parts[0]) for _, at in members)
    if not of_all:
        prefix = prefix or (stem,)
        yield _Entry(prefix)
    for info, at in members:
        if at.is_absolute() or ".." in at.parts or ":" in at.parts[0]:
            problem = f"{stem}.zip is refused: the path {info.filename} leads out of it"
            yield _Entry((*prefix, *at.parts)[:1], problem=problem)
            return
    for info, at in members:
        parts = (*prefix, *at.parts)
        if info.is_dir() or at.suffix.lower() != ".zip":
            yield _Entry(parts, None if info.is_dir() else partial(_read, partial(archive.open, info)))
        elif inner:
            yield _Entry(parts[:1], problem=f"{stem}.zip holds another zip, {info.filename}; hand in one zip")
        else:
            yield from _inner_zip(archive, info, parts)


def _inner_zip(archive: zipfile.ZipFile, info: zipfile.ZipInfo, parts: tuple[str, ...]) -> Iterator[_Entry]:
    try:
        data = _read(partial(archive.open, info), MAX_ZIP + 1)
    except _UNREADABLE as error:
        yield _Entry(parts[:1], problem=f"{info.filename} cannot be read: {error}")
        return
    if len(data) > MAX_ZIP:
        yield _Entry(parts[:1], problem=f"{info.filename} is larger than {MAX_ZIP >> 20} MiB")
    else:
        yield from _zip(io.BytesIO(data), parts[:-1], PurePosixPath(parts[-1]).stem, inner=True)


def _read(opened: Callable[[], Any], limit: int) -> bytes:
    with opened() as file:
        return file.read(limit)
