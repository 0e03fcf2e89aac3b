"""Launches in a child process, which may die of them without harm: for kernels that nobody trusts yet.

The child (isolated_child.py) starts with the first such launch and stays. The two talk in pickles over its stdin and
stdout. Arrays travel as the spans of memory that they lie in, so that views and arrays which overlap stay what they
are.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from tiny_vllm.device.emulator.limits import Shape
from tiny_vllm.device.emulator.pipe import View, receive, send
from tiny_vllm.errors import CompileError, DeviceError, KernelCheckError, KernelError, LaunchError

_GRACE = 30.0  # seconds beyond the launch's own deadline: starting, loading, copying
_KEPT_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "XDG_CACHE_HOME")
_SETTINGS = ("timeout", "workers", "compute_capability", "check", "order")
_ERRORS = {each.__name__: each for each in (CompileError, LaunchError, DeviceError)}
_CAUSES: dict[int, str] = {
    signal.SIGSEGV: "probably an access outside an array",
    signal.SIGBUS: "probably an access outside an array",
    signal.SIGABRT: "probably a write outside an array, which damaged the process's memory",
    signal.SIGFPE: "probably an integer division by zero",
    signal.SIGKILL: "probably for want of memory",
}


class IsolatedRunner:
    """Runs a kernel's launches in the child. A drop-in for the runner of launch.py."""

    def __init__(self, module: Any, name: str) -> None:
        self._name, self._timeout = name, module.settings.timeout
        settings = {key: getattr(module.settings, key) for key in _SETTINGS}
        self._definition = (module.code, module.options, module.name_expressions, tuple(settings.items()))

    def pack(self, args: Sequence[Any]) -> Sequence[Any]:
        return args

    def run(self, known: tuple[Shape, bytes], packed: Sequence[Any], args: Sequence[Any]) -> None:
        """Raises KernelError when the child dies of it, LaunchError for what the launch itself reports."""
        bounds = merge([np.lib.array_utils.byte_bounds(arg) for arg in args if isinstance(arg, np.ndarray)])
        spans = [ctypes.string_at(low, high - low) for low, high in bounds]
        message = (self._definition, self._name, known[0], spans, [_described(arg, bounds) for arg in args])
        kind, text, printed, results = _child().ask(self._name, message, self._timeout + _GRACE)
        sys.stdout.write(printed)
        findings = pickle.loads(results.pop()) if kind == KernelCheckError.__name__ else ()
        if kind != "done" and not findings:
            raise _ERRORS.get(kind, KernelError)(text)
        written = {_span_of(arg, bounds) for arg in args if isinstance(arg, np.ndarray) and arg.flags.writeable}
        for index in written:
            low, high = bounds[index]
            ctypes.memmove(low, results[index], high - low)
        if findings:
            raise KernelCheckError(text, findings)


def merge(bounds: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans of memory in order, those that overlap made one."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(bounds):
        if merged and low < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _span_of(array: np.ndarray, bounds: Sequence[tuple[int, int]]) -> int:
    low, high = np.lib.array_utils.byte_bounds(array)
    return next(i for i, (begin, end) in enumerate(bounds) if begin <= low and high <= end)


def _described(arg: Any, bounds: Sequence[tuple[int, int]]) -> Any:
    if not isinstance(arg, np.ndarray):
        return arg
    span = _span_of(arg, bounds)
    offset = arg.__array_interface__["data"][0] - bounds[span][0]
    return View(span, offset, arg.shape, arg.strides, arg.dtype)


class Child:
    """The process that runs launches; it is started again when it died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, kernel: str, message: Any, patience: float) -> tuple[str, str, str, list[bytes]]:
        """Send one launch, and its answer: (kind, text, printed, spans). patience: seconds."""
        with self._lock:
            process = self._started()
            try:
                send(process.stdin, message)
                answer: tuple[str, str, str, list[bytes]] = receive(process.stdout, time.monotonic() + patience)
                return answer
            except TimeoutError:
                self._end()
                raise LaunchError(
                    f"{kernel}: the launch timed out and was terminated (CUDA_ERROR_LAUNCH_TIMEOUT): "
                    f"no answer from its process after {patience:g} s; is there an endless loop?"
                ) from None
            except (EOFError, OSError):
                raise KernelError(f"{kernel}: {self._cause_of_death()}") from None
            except BaseException:  # an interrupt: the answer would come later, to the wrong question
                self._end()
                raise

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            path = [os.path.abspath(entry) for entry in sys.path]
            serve = "from tiny_vllm.device.emulator.isolated_child import serve; serve()"
            code = f"import sys; sys.path[:] = {path!r}; {serve}"
            kept = {k: v for k, v in os.environ.items() if k in _KEPT_ENVIRONMENT or k.startswith("TINY_VLLM_")}
            # A session of its own: Ctrl-C is for the parent, which ends the child.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=kept,
                start_new_session=True,
            )
        return self._process

    def _end(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        self._process = None

    def _cause_of_death(self) -> str:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.poll()
        self._end()
        return cause_of_death(code)


def cause_of_death(code: int | None) -> str:
    """A sentence about a process that ended unasked; code: as Popen.returncode has it."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"the process that ran it was ended by {name}, {_CAUSES.get(-code, 'for a reason unknown')}"
    return f"the process that ran it ended with exit code {code}"


@lru_cache(maxsize=1)
def _child() -> Child:
    return Child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_child.cache_clear)
