"""`tiny-vllm generate --mine work/`: the finished model on a student's own kernels and Python, in a child process."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tiny_vllm.cache import expanded
from tiny_vllm.course import chapters_folder, import_chapters, markers
from tiny_vllm.course.child import describe
from tiny_vllm.course.compose import numbered
from tiny_vllm.course.files import read_source, write_atomic
from tiny_vllm.device.emulator.isolate import cause_of_death
from tiny_vllm.errors import KernelError, UserError


def run_mine(folder: str, function: Callable[[], int]) -> int:
    """Run a function in a child process in which the folder's files stand in for the chapters'; returns its result.

    Says on stderr whose each file is. A region that is not solved yet is filled with the worked one. Raises UserError
    and KernelError for what the function raises, and for a child that dies.
    """
    work = Path(expanded(folder)).absolute()
    if not work.is_dir():
        raise UserError(f"--mine {folder}: there is no such folder; `tiny-vllm course start 3` writes work/")
    with tempfile.TemporaryDirectory() as space:
        whole = Path(space) / work.name
        whole.mkdir()
        for line in gather(work, whole):
            print(line, file=sys.stderr, flush=True)

        def overlaid() -> int:
            os.environ["TINY_VLLM_WORK"] = str(whole)
            import_chapters(whole)
            return function()

        return _apart(overlaid, whole)


def gather(work: Path, whole: Path) -> Iterator[str]:
    """Copy a student's files, the gaps filled, and tell whose each file of the chapters is."""
    for theirs in sorted(chapters_folder().glob("ch[0-9][0-9]_*/*")):
        name = f"{theirs.parent.name}/{theirs.name}"
        mine = work / name
        if theirs.suffix not in (".cu", ".cuh", ".py") or theirs.name in ("__init__.py", "__main__.py", "cases.py"):
            continue
        if not mine.exists():
            yield f"the course's  {name}"
            continue
        written = read_source(mine)
        worked = {each.id: each.body for each in markers.regions(read_source(theirs)) if each.solved}
        gaps = [each.id for each in markers.regions(written, name) if not each.solved and each.id in worked]
        text = markers.fill(written, {id: worked[id] for id in gaps})
        write_atomic(whole / name, numbered(text, written, f"{work.name}/{name}") if mine.suffix == ".cu" else text)
        yield f"yours         {name}" + (f", but for {', '.join(gaps)}: not solved yet, the course's" if gaps else "")


def _apart(function: Callable[[], int], work: Path) -> int:
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os._exit(_child(function, writing, work))
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    if said:
        kind, text = json.loads(said)
        raise UserError(text) if kind == "UserError" else KernelError(text)
    if code < 0:
        raise KernelError(cause_of_death(code))
    return code


def _child(function: Callable[[], int], writing: int, work: Path) -> int:
    """The exit code; what was raised goes to the parent."""
    try:
        return function()
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        kind = "UserError" if isinstance(error, UserError) else "KernelError"
        os.write(writing, json.dumps([kind, describe(error, work)]).encode())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
