"""The child process that runs students' code: `python -m tiny_vllm.sandbox.child LIMITS`, in a tree with chapters/.

It answers {chapter, exercise} and arrays by that chapter's cases.py. TINY_VLLM_DEVICE names the device, TINY_VLLM_WORK
the folder whose files stand in for the chapters'.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tiny_vllm.device import get_device
from tiny_vllm.device.base import Device
from tiny_vllm.device.emulator.check.poison import never_written, poison
from tiny_vllm.device.emulator.process import serve
from tiny_vllm.errors import KernelCheckError, KernelError, UserError
from tiny_vllm.sandbox.limits import Limits
from tiny_vllm.sandbox.message import pack, unpack

POISON = -77777  # chapters/_cases.py: of an integer output that nothing has written
_TEXT_LIMIT = 20_000  # characters of an error that are worth a reader's time
_NUMBERED = re.compile(r'#line (\d+) "(.+)"')


def main(limits: Limits) -> None:
    """Answer until the parent is gone."""
    limits.restrict()
    work = Path(os.environ["TINY_VLLM_WORK"])
    stand_in(work)
    serve(partial(_answer, get_device(os.environ["TINY_VLLM_DEVICE"]), work))


def stand_in(work: Path) -> None:
    """Let the .py files of work/chNN_name/ stand in for the chapters'."""
    for folder in sorted(work.glob("ch[0-9][0-9]_*/")):
        if importlib.util.find_spec(f"chapters.{folder.name}"):
            importlib.import_module(f"chapters.{folder.name}").__path__.insert(0, str(folder))


def _answer(device: Device, work: Path, message: bytes) -> bytes:
    request, arrays = unpack(message)
    inputs = {name: device.asarray(arrays[name]) for name in request["inputs"]} | request["scalars"]
    outputs = {name: _output(device, arrays[f"out {name}"]) for name in request["outputs"]}
    words: dict[str, Any] = {"findings": [], "error": "", "kind": ""}
    try:
        cases = importlib.import_module(f"chapters.{request['chapter']}.cases")
        task = next(task for task in cases.TASKS if task.exercise == request["exercise"])
        with _filled_whole(device, outputs):
            task.run(device, inputs, outputs)
        device.synchronize()
    except KernelCheckError as error:
        words["findings"] = [_finding(each) for each in error.findings]
    except BaseException as error:  # a student's code may raise anything, SystemExit too
        words |= {"error": describe(error, work), "kind": type(error).__name__}
    host = {name: device.to_host(array) for name, array in outputs.items()}
    words["never_written"] = {name: int(never_written(array).sum()) for name, array in host.items()}
    return pack(words, host)


class OutputError(Exception):
    """What a student's function gave in place of an output."""


@contextmanager
def _filled_whole(device: Device, outputs: Mapping[str, Any]) -> Iterator[None]:
    """In this block copy_in into an output names it where the values do not fit: OutputError."""
    plain = device.copy_in

    def copy_in(target: Any, host: Any) -> None:
        name = next((name for name, each in outputs.items() if each is target), "")
        try:
            plain(target, host)
        except (TypeError, ValueError):
            if not name:
                raise
            given = f"an array of {host.dtype} of shape {host.shape}" if isinstance(host, np.ndarray) else _called(host)
            wanted = f"{name} must come out as an array of numbers of shape {tuple(target.shape)}"
            raise OutputError(f"{wanted}, but is {given}; fill all of it in your lines") from None

    device.copy_in = copy_in  # type: ignore[method-assign]
    try:
        yield
    finally:
        del device.copy_in


def _called(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _output(device: Device, array: np.ndarray) -> Any:
    """An output on the device; one that holds nothing yet has the emulator's pattern of unwritten memory."""
    nothing = np.isnan(array.astype(np.float32)) if array.dtype.kind not in "iub" else array == POISON
    if not array.size or not nothing.all():
        return device.asarray(array)
    made = device.empty(array.shape, array.dtype)
    if device.name != "emulator":
        device.copy_in(made, poison(np.empty(array.shape, array.dtype)))
    return made


def _finding(finding: Any) -> dict[str, Any]:
    return {"kind": finding.kind, "text": str(finding)[:_TEXT_LIMIT], "file": finding.file, "line": finding.line}


def describe(error: BaseException, work: Path) -> str:
    """One sentence: ours as it is; a student's own exception with its kind and the last line of theirs it came from."""
    if isinstance(error, (UserError, KernelError, OutputError)):
        return str(error)[:_TEXT_LIMIT]
    lines = [(each.filename, each.lineno, each.line) for each in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        lines.append((error.filename or "", error.lineno, error.text))
    theirs = [each for each in lines if work in Path(each[0]).parents]
    place = _place(*theirs[-1]) if theirs else ""
    return f"{type(error).__name__}: {getattr(error, 'msg', error)}{place}"[:_TEXT_LIMIT]


def _place(file: str, number: int | None, line: str | None) -> str:
    """Where in the student's own file, as the last `#line 12 "work/ch03_rms_norm/formula.py"` above it says."""
    name, above = Path(file).name, Path(file).read_text("utf-8").splitlines()[: number or 0]
    for distance, text in enumerate(reversed(above)):
        if match := _NUMBERED.fullmatch(text):
            name, number = match[2], int(match[1]) + distance - 1
            break
    return f" ({name}, line {number}: {(line or '').strip()})"


if __name__ == "__main__":
    main(Limits(**json.loads(sys.argv[1])))
