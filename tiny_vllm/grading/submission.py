"""What students handed in, as texts by name: folders, zips, Moodle's zip of all. Nothing is unpacked to disk."""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from tiny_vllm.course import markers
from tiny_vllm.errors import UserError

MAX_FILE, MAX_ZIP = 256 << 10, 32 << 20  # bytes of a text that is read, of a zip inside a zip
_MOODLE = re.compile(r"^(.+?)_(\d+)_assignsubmission_file_?.*")
_PACKED = re.compile(r"(.+?)(\.tar)?\.(zip|tar|tgz|gz|bz2|xz|zst|rar|7z)", re.IGNORECASE)
_WORK = re.compile(r"ch\d\d_\w+|work")
_STRAY = re.compile(r"__MACOSX|\.DS_Store|\._.*|__pycache__|\.ipynb_checkpoints|desktop\.ini|Thumbs\.db")
# Where it lies below the submissions (the first part is the student's), and what opens it as a file of bytes; in place
# of that "" for a folder, or why it cannot be read.
_Entry = tuple[tuple[str, ...], Callable[[], Any] | str]


@dataclass
class Submission:
    """A student's files by their name in work/ ("ch03_rms_norm/rms_norm.cu"); problem: why some could not be read."""

    student: str
    files: dict[str, str] = field(default_factory=dict)
    problem: str = ""

    def bodies(self, file: str) -> dict[str, str]:
        """What stands in each region of a file. UserError where the file is missing or its marks are broken."""
        if file not in self.files:
            raise UserError(self.problem or f"there is no {file} in the submission")
        return {region.id: region.body for region in markers.regions(self.files[file], file)}


def submissions(path: Path, wanted: Iterable[str]) -> list[Submission]:
    """The submissions in a folder or a zip, sorted by student; of each only the wanted files, wherever they lie in it.

    UserError where there is no submission.
    """
    found: dict[str, Submission] = defaultdict(lambda: Submission(""))
    for (top, *parts), opened in _entries(path):
        if isinstance(opened, str):
            found[top].problem = opened or found[top].problem
        else:
            _take(found[top], "/".join(parts), opened, wanted)
    if not found:
        raise UserError(f"{path} holds no submission; it needs a folder or a zip named for each student")
    names = _names(found)
    return sorted((replace(each, student=names[top]) for top, each in found.items()), key=lambda each: each.student)


def loose(path: Path) -> list[str]:
    """The files that lie beside the submissions in a folder, and are none."""
    if path.is_file() or _is_work(path):
        return []
    names = sorted(child.name for child in path.iterdir() if child.is_file())
    return [name for name in names if not any(each.fullmatch(name) for each in (_STRAY, _PACKED, _MOODLE))]


def _take(submission: Submission, path: str, opened: Callable[[], Any], wanted: Iterable[str]) -> None:
    for name in wanted:
        if f"/{path}".endswith(f"/{name}") and name not in submission.files:
            try:
                with opened() as file:
                    submission.files[name] = _text(file.read(MAX_FILE + 1))
            except Exception as error:  # damaged and hostile zips raise much more than BadZipFile
                submission.problem = f"{path}: {error}"


def _names(tops: Iterable[str]) -> dict[str, str]:
    """What Moodle puts around a name is taken off; its number stays where two have the same name."""
    short = {top: _MOODLE.sub(r"\1", top) for top in tops}
    times = Counter(short.values())
    return {top: name if times[name] == 1 else _MOODLE.sub(r"\1 (\2)", top) for top, name in short.items()}


def _entries(path: Path) -> Iterator[_Entry]:
    """Everything that was handed in. A folder or a zip that is one student's work/ is that student's submission."""
    if not path.exists():
        raise UserError(f"{path} does not exist; name the folder or the zip of the submissions")
    if path.is_file():
        return _unzipped((path.name,), partial(path.open, "rb"))
    above = path.parent if _is_work(path) else path
    beside = {path / name for name in loose(path)}
    files = [file for file in path.rglob("*") if file not in beside]
    return _expanded((file.relative_to(above).parts, _opened(file)) for file in files)


def _is_work(path: Path) -> bool:
    """Whether a folder is one student's, as work/ is."""
    return any(_WORK.fullmatch(child.name) for child in path.iterdir())


def _opened(file: Path) -> Callable[[], Any] | str:
    if file.is_symlink():  # it could lead to somebody else's file
        return f"{file.name} is a link, which is not followed; put what it leads to in its place"
    return "" if file.is_dir() else partial(file.open, "rb")


def _expanded(entries: Iterable[_Entry], depth: int = 0) -> Iterator[_Entry]:
    """The same without strays, a zip's members in its place: loose files first, of those the shallow ones."""
    for path, opened in sorted(entries, key=lambda entry: (_is_zip(entry[0]), len(entry[0]), entry[0])):
        if any(map(_STRAY.fullmatch, path)):
            continue
        if _is_zip(path) and not isinstance(opened, str):
            yield from _unzipped(path, opened, depth)
        elif (packed := _PACKED.fullmatch(path[-1])) and opened:
            unread = f"{path[-1]} is packed in another way than a zip is; unpack it into a folder, or ask for a zip"
            yield path[:-1] or (packed[1],), opened if isinstance(opened, str) else unread
        elif len(path) > 1 or isinstance(opened, str) or _MOODLE.match(path[0]):
            yield path, opened


def _is_zip(path: tuple[str, ...]) -> bool:
    return path[-1].lower().endswith(".zip")


def _unzipped(path: tuple[str, ...], opened: Callable[[], Any], depth: int = 0) -> Iterator[_Entry]:
    """What a zip holds, as if it lay beside it; a zip that lies in no folder is itself a student's."""
    name, above = path[-1], path[:-1] or (PurePosixPath(path[0]).stem,)
    try:
        with opened() as file:
            yield from _expanded(_members(name, above, _archive(name, file, depth), depth), depth + 1)
    except UserError as error:
        yield above, str(error)
    except Exception as error:  # as above
        yield above, f"{name} is no zip that can be read: {error}"


def _members(name: str, above: tuple[str, ...], archive: zipfile.ZipFile, depth: int) -> Iterator[_Entry]:
    """A zip of all students, as Moodle makes it, names them itself. UserError for a path that leads out of it."""
    infos = archive.infolist()
    members = [(info, path) for info in infos if (path := PureWindowsPath(info.filename)).parts]  # at both slashes
    for info, path in members:
        if path.anchor or ".." in path.parts:
            raise UserError(f"{name} is refused: the path {info.filename} leads out of it")
    tops = {path.parts[0] for _, path in members if not any(map(_STRAY.fullmatch, path.parts))}
    if depth == 0 and tops and all(map(_MOODLE.match, tops)):
        above = ()
    else:
        yield above, ""
    for info, path in members:
        yield (*above, *path.parts), "" if info.is_dir() else partial(archive.open, info)


def _archive(name: str, file: IO[bytes], depth: int) -> zipfile.ZipFile:
    """A zip; one inside another is read into memory. UserError where it is too large or lies too deep."""
    if depth > 1:
        raise UserError(f"the zip inside holds another zip, {name}; hand in one zip")
    data = file.read(MAX_ZIP + 1) if depth else b""
    if len(data) > MAX_ZIP:
        raise UserError(f"{name} is larger than {MAX_ZIP >> 20} MiB")
    return zipfile.ZipFile(io.BytesIO(data) if depth else file)


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
