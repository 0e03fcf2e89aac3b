"""Runs of a student's code in a process of its own, which may crash, hang or lie without harm to this one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tiny_vllm.course.child import receive, send
from tiny_vllm.device.emulator.isolate import cause_of_death

_KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
)
_KEPT_PREFIXES = ("TINY_VLLM_", "CUDA", "CUPY", "NVIDIA", "OMP_", "OPENBLAS_", "MKL_", "LC_")
_PRINTED_LIMIT = 64 << 10
_WORDS_LIMIT = 4 << 20  # bytes of an answer beside its arrays


@dataclass(frozen=True)
class Limits:
    """seconds: of one run; launch_seconds: of one launch on the emulator. memory: bytes of address space. processes:
    beside those that the user has. network: False cuts it off where Linux allows."""

    seconds: float = 30.0
    launch_seconds: float = 10.0
    memory: int | None = None
    processes: int | None = None
    network: bool = True


@dataclass(frozen=True)
class Found:
    """A finding of check mode; text: the whole line, with file, line and kind."""

    kind: str
    text: str
    file: str
    line: int


@dataclass(frozen=True)
class RunResult:
    """outputs: as the run left them; empty where the process died. never_written: elements, by output.

    error: what ended the run, "" if nothing did; kind: the exception's name, "crash" or "timeout".
    """

    outputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    findings: tuple[Found, ...] = ()
    never_written: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    kind: str = ""
    printed: str = ""


class Child:
    """One process for one implementation; a context manager. It is started at once and, after a crash, again.

    tree: a checkout, whose chapters, kernels and tiny_vllm run. work: the folder whose chapter files stand in for
    theirs. check: every launch on the emulator in check mode. order: of a block's threads, "forward" or "reverse".
    """

    def __init__(
        self,
        tree: Path,
        work: Path,
        device: str = "emulator",
        check: bool = True,
        order: str = "forward",
        limits: Limits | None = None,
    ) -> None:
        self._tree, self._limits = tree.resolve(), limits or Limits()
        names = ("memory", "processes", "network")
        settings = {"device": device, "work": str(work.resolve())} | {
            name: getattr(self._limits, name) for name in names
        }
        self._command = [sys.executable, "-m", "tiny_vllm.course.child", json.dumps(settings)]
        ours = {"TINY_VLLM_WORK": str(work.resolve()), "TINY_VLLM_DEVICE": device, "TINY_VLLM_THREAD_ORDER": order}
        ours["TINY_VLLM_CHECK"] = "1" if check and device == "emulator" else "0"
        ours["TINY_VLLM_TIMEOUT"] = str(self._limits.launch_seconds)
        ours["PYTHONPATH"] = os.pathsep.join([str(self._tree), *filter(None, [os.environ.get("PYTHONPATH")])])
        kept = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(_KEPT_PREFIXES)}
        self._environment = {**kept, **ours}
        self._process: subprocess.Popen[bytes] | None = None
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes it
        self._start()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._end()
        self._printed.close()

    def run(
        self, chapter: str, exercise: str, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray]
    ) -> RunResult:
        """Let the exercise's task run on these inputs and outputs (chapters/_cases.py). chapter: "ch03_rms_norm"."""
        arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
        scalars = {
            name: getattr(value, "item", lambda value=value: value)()
            for name, value in inputs.items()
            if name not in arrays
        }
        request = {"chapter": chapter, "exercise": exercise, "inputs": [*arrays], "scalars": scalars}
        request["outputs"] = [*outputs]
        deadline = time.monotonic() + self._limits.seconds
        begin = self._printed.seek(0, os.SEEK_END)
        try:
            process = self._process or self._start()
            assert process.stdin is not None and process.stdout is not None
            send(process.stdin, request, arrays | {f"out {name}": array for name, array in outputs.items()})
            file, limit = process.stdout.fileno(), _WORDS_LIMIT + sum(array.nbytes for array in outputs.values())
            header, answer = receive(lambda size: _read(file, size, deadline), limit)
            return _result(header, answer, outputs, self._said(begin))
        except TimeoutError:
            self._end()
            text = f"no answer after {self._limits.seconds:g} s; is there an endless loop?"
            return RunResult(error=text, kind="timeout", printed=self._said(begin))
        except (EOFError, BrokenPipeError):
            code = self._wait()
            return RunResult(error=cause_of_death(code), kind="crash", printed=self._said(begin))
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            self._end()
            return RunResult(error=f"the process answered in another form ({error})", kind="crash")
        except BaseException:  # an interrupt: the answer would come later, to the wrong question
            self._end()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # a session of its own: Ctrl-C is for the parent, which ends the child
            self._command,
            stdin=pipe,
            stdout=pipe,
            stderr=self._printed,
            cwd=self._tree,
            env=self._environment,
            start_new_session=True,
        )
        return self._process

    def _wait(self) -> int | None:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.poll()
        self._end()
        return code

    def _end(self) -> None:
        """End the process and all that it started, which is in its session."""
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        self._process = None

    def _said(self, begin: int) -> str:
        self._printed.seek(begin)
        return self._printed.read(_PRINTED_LIMIT).decode(errors="replace")


def _result(
    header: Mapping[str, Any], answer: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], printed: str
) -> RunResult:
    """The answer, if it has the form that was asked for; what is in it is the child's word."""
    for name, array in outputs.items():
        if answer[name].dtype != array.dtype or answer[name].shape != array.shape:
            raise ValueError(f"{name} came back as another array")
    found = tuple(Found(str(f["kind"]), str(f["text"]), str(f["file"]), int(f["line"])) for f in header["findings"])
    unwritten = {name: int(header["never_written"][name]) for name in outputs}
    arrays = {name: answer[name] for name in outputs}
    return RunResult(arrays, found, unwritten, str(header["error"]), str(header["kind"]), printed)


def _read(file: int, size: int, deadline: float) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        if not select.select([file], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            raise TimeoutError
        if not (part := os.read(file, min(size - len(parts), 1 << 20))):
            raise EOFError
        parts += part
    return bytes(parts)
