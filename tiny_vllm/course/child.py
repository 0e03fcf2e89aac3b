"""The child process that runs students' code: `python -m tiny_vllm.course.child SETTINGS`.

It answers requests on its standard input until the parent is gone: {chapter, exercise} and arrays, to be run by that
chapter's cases.py. A message is two lengths, a header in JSON and the arrays' bytes: nothing is pickled, so that a
parent can read what a child that it does not trust has written. What a student's code prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from tiny_vllm.course import import_chapters
from tiny_vllm.device import get_device
from tiny_vllm.device.base import Device
from tiny_vllm.device.emulator.check.poison import never_written, poison
from tiny_vllm.device.source import as_dtype
from tiny_vllm.errors import KernelCheckError, KernelError, UserError

POISON = -77777  # chapters/_cases.py: of an integer output that nothing has written
_LENGTHS = struct.Struct("<QQ")
_TEXT_LIMIT = 20_000  # characters of an error that are worth a reader's time
_FILE_LIMIT = 256 << 20  # bytes that one file may grow to
_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000  # flags of unshare(2)


def send(stream: IO[bytes], header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write one message."""
    described = {name: [array.dtype.name, array.shape] for name, array in arrays.items()}
    text = json.dumps({**header, "arrays": described}).encode()
    stream.write(_LENGTHS.pack(len(text), sum(array.nbytes for array in arrays.values())) + text)
    for array in arrays.values():
        stream.write(np.ascontiguousarray(array).tobytes())
    stream.flush()


def receive(read: Callable[[int], bytes], limit: int = 1 << 40) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """One message by read(size). Raises EOFError at the end, ValueError for what is no message or beyond the limit."""
    text, size = _LENGTHS.unpack(read(_LENGTHS.size))
    if text + size > limit:
        raise ValueError(f"a message of {text + size} bytes, above {limit}")
    header, data = json.loads(read(text)), memoryview(read(size))
    arrays, begin = {}, 0
    for name, (dtype, shape) in header.pop("arrays").items():
        count = int(np.prod(shape, dtype=np.int64)) * as_dtype(dtype).itemsize
        arrays[name] = np.frombuffer(data[begin : begin + count], as_dtype(dtype)).reshape(shape)
        begin += count
    return header, arrays


def serve(settings: Mapping[str, Any]) -> None:
    """Answer until the parent is gone. settings: device, work, memory, processes, network."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # nothing else may write between the answers
    restrict(settings["memory"], settings["processes"], settings["network"])
    work = Path(settings["work"])
    import_chapters(work)
    device = get_device(settings["device"])
    with suppress(EOFError):
        while True:
            request, arrays = receive(lambda size: _exactly(incoming, size))
            header, outputs = _answer(device, work, request, arrays)
            sys.stdout.flush()
            send(outgoing, header, outputs)


def restrict(memory: int | None, processes: int | None, network: bool) -> None:
    """Limits of this process: bytes of address space, processes beside those there are, no network where Linux can."""
    _limit(resource.RLIMIT_FSIZE, _FILE_LIMIT)
    _limit(resource.RLIMIT_CORE, 0)
    if memory is not None:
        _limit(resource.RLIMIT_AS, memory)
    if processes is not None:
        mine = [each for each in Path("/proc").glob("[0-9]*/task/*") if _owner(each) == os.getuid()]
        _limit(resource.RLIMIT_NPROC, len(mine) + processes)
    if not network and sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if libc.unshare(_NEW_NETWORK) != 0:
            libc.unshare(_NEW_USER | _NEW_NETWORK)


def _limit(which: int, amount: int) -> None:
    hard = resource.getrlimit(which)[1]
    with suppress(ValueError, OSError):  # macOS refuses some
        resource.setrlimit(which, (amount, amount) if hard == resource.RLIM_INFINITY else (min(amount, hard), hard))


def _owner(path: Path) -> int:
    try:
        return path.stat().st_uid
    except OSError:
        return -1


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _answer(
    device: Device, work: Path, request: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    inputs = {name: device.asarray(array) for name, array in arrays.items() if name in request["inputs"]}
    outputs = {name: _output(device, arrays[f"out {name}"]) for name in request["outputs"]}
    header: dict[str, Any] = {"findings": [], "error": "", "kind": ""}
    try:
        cases = importlib.import_module(f"chapters.{request['chapter']}.cases")
        task = next(task for task in cases.TASKS if task.exercise == request["exercise"])
        task.run(device, {**inputs, **request["scalars"]}, outputs)
        device.synchronize()
    except KernelCheckError as error:
        header["findings"] = [_finding(each) for each in error.findings]
    except BaseException as error:  # a student's code may raise anything, SystemExit too
        header |= {"error": describe(error, work), "kind": type(error).__name__}
    host = {name: device.to_host(array) for name, array in outputs.items()}
    header["never_written"] = {name: int(never_written(array).sum()) for name, array in host.items()}
    return header, host


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
    """One sentence: ours as it is; a student's own exception with its kind and the last line of theirs it came from.

    The line is quoted: its number may differ from the one in the student's file, where other regions have other sizes.
    """
    if isinstance(error, (UserError, KernelError)):
        return str(error)[:_TEXT_LIMIT]
    lines = [each for each in traceback.extract_tb(error.__traceback__) if work in Path(each.filename).parents]
    name, line = (Path(lines[-1].filename).name, lines[-1].line) if lines else ("", "")
    if isinstance(error, SyntaxError):
        name, line = Path(error.filename or "").name, (error.text or "").strip()
    place = f" ({name}: {line})" if name else ""
    return f"{type(error).__name__}: {getattr(error, 'msg', error)}{place}"[:_TEXT_LIMIT]


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
