"""A student's files: where they are, how they are read, and that nothing of them is ever lost."""

from __future__ import annotations

import itertools
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from tiny_vllm.cache import expanded
from tiny_vllm.course import chapters_folder
from tiny_vllm.errors import UserError


def work_folder() -> Path:
    """The one folder that a student edits: TINY_VLLM_WORK, else work/ of the checkout. It need not exist yet."""
    named = os.environ.get("TINY_VLLM_WORK")
    work = Path(expanded(named)).absolute() if named else chapters_folder().parent / "work"
    if work.exists() and not work.is_dir():
        raise UserError(f"{work} is a file, where your folder of answers should be; move it away")
    return work


def read_source(path: Path) -> str:
    """The text of a .cu or .py file, line ends made \\n. UserError for what cannot be read as UTF-8 text."""
    name = f"{path.parent.name}/{path.name}"
    if path.is_dir():
        raise UserError(f"{name} is a folder, where a file should be; move it away and start the chapter again")
    if path.exists() and not path.is_file():  # a pipe would wait for ever
        raise UserError(f"{name} is no file, but a pipe or a device; move it away and start the chapter again")
    try:
        text = path.read_bytes().decode("utf-8-sig")  # some editors of Windows put a mark in front
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(f"{name} is not UTF-8 text (line {line}); save it as UTF-8 in your editor") from None
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}; see to its permissions") from None
    if "\0" in text:
        raise UserError(f"{name} is not text: it holds a zero byte; save it as UTF-8 in your editor")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def write_atomic(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half of one.

    UserError for a folder in which nothing can be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"{path} cannot be written: {why}; see to the permissions of its folder") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def implementation(name: str) -> Path:
    """Whose files run: "work", "solution" (the worked ones), or a folder that holds chNN_name/ folders."""
    if name == "solution":
        return chapters_folder()
    folder = work_folder() if name == "work" else Path(expanded(name)).absolute()
    if name != "work" and not folder.is_dir():
        raise UserError(f"there is no folder {name}; give work, solution, or a folder with chapters in it")
    return folder


def keep(path: Path, work: Path, name: str = "") -> str:
    """Copy a file into work/.attic/ before it changes, under the first free number: rms_norm.1.cu.

    name: its path in there, which is that in work/ if left out. Returns what messages call the copy.
    """
    wanted = work / ".attic" / (name or path.relative_to(work))
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        with suppress(FileExistsError), open(wanted.with_stem(f"{wanted.stem}.{number}"), "xb") as copy:
            copy.write(path.read_bytes())
            return f"{work.name}/{Path(copy.name).relative_to(work).as_posix()}"
    raise AssertionError("numbers do not end")
