"""`tiny-vllm generate --mine work/`: the finished model on a student's own kernels and Python, in a child process."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tiny_vllm.cache import expanded
from tiny_vllm.course import LAST_STAGE, chapters_folder, import_chapters, markers, need_all_chapters
from tiny_vllm.course.compose import numbered
from tiny_vllm.course.files import read_source, write_atomic
from tiny_vllm.device import library
from tiny_vllm.errors import UserError
from tiny_vllm.sandbox.child import stand_in
from tiny_vllm.sandbox.fork import run_apart

YOURS = "yours         "


def run_mine(folder: str, function: Callable[[], int]) -> int:
    """Run a function in a child process in which the folder's files stand in for the chapters'; returns its result.

    Says on stderr whose each file is that runs, and which of the student's do not. A region that is not solved yet is
    filled with the worked one. What the function raises is told there in one sentence, too; KernelError for a child
    that dies.
    """
    work = Path(expanded(folder)).absolute()
    try:
        need_all_chapters()
    except UserError as error:
        raise UserError(f"{error}, without --mine") from None
    if not work.is_dir():
        raise UserError(f"--mine {folder}: there is no such folder; `tiny-vllm course start 3` writes work/")
    with tempfile.TemporaryDirectory() as space:
        whole = Path(space) / work.name
        whole.mkdir()
        owners = gather(work, whole)

        def overlaid() -> int:
            os.environ["TINY_VLLM_WORK"] = str(whole)
            import_chapters()
            stand_in(whole)
            return _told(owners, function)

        return run_apart(overlaid, whole)


def gather(work: Path, whole: Path) -> dict[str, str]:
    """Copy a student's files, the gaps filled; returns in words whose each file of the chapters is, by its name."""
    owners = {}
    for theirs in sorted(chapters_folder().glob("ch[0-9][0-9]_*/*")):
        name = f"{theirs.parent.name}/{theirs.name}"
        if theirs.suffix not in (".cu", ".py") or theirs.name in ("__init__.py", "__main__.py", "cases.py"):
            continue
        owners[name] = f"the course's  {name}"
        if (work / name).exists():
            written, worked = read_source(work / name), markers.solved(read_source(theirs))
            gaps = [each.id for each in markers.regions(written, name) if not each.solved and each.id in worked]
            text = markers.fill(written, {id: worked[id] for id in gaps})
            write_atomic(whole / name, numbered(text, written, f"{work.name}/{name}"))
            but = f", but for {', '.join(gaps)}: not solved yet, the course's" if gaps else ""
            owners[name] = f"{YOURS}{name}{but}"
    return owners


def _told(owners: dict[str, str], function: Callable[[], int]) -> int:
    """The function's result. Says whose each file is as it is loaded; at the end, which of the student's never was."""
    load = library.load_source

    def say(name: str) -> None:
        if name in owners:
            print(owners.pop(name), file=sys.stderr, flush=True)

    def told(name: str) -> str:
        say(name)
        return load(name)

    library.load_source = told  # type: ignore[assignment]
    for stage in sorted(_stages(LAST_STAGE.split(".")[1])):
        say(stage)
    code = function()
    for line in owners.values():
        if line.startswith(YOURS):
            print(f"{line} (no part of the model)", file=sys.stderr)
    return code


def _stages(chapter: str) -> set[str]:
    """A chapter's stage and those that it is built on."""
    stage = f"{chapter}/stage.py"
    below = re.findall(r"^from chapters\.(\w+)\.stage import", read_source(chapters_folder() / stage), re.MULTILINE)
    return {stage}.union(*map(_stages, set(below)))
