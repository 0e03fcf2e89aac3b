"""Launches in a child process, which may die of them without harm: for kernels that nobody trusts yet.

The child (isolated_child.py) starts with the first such launch and stays. The two talk in pickles. Arrays travel as the
spans of memory that they lie in, so that views and arrays which overlap stay what they are.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tiny_vllm.device.emulator.limits import Shape
from tiny_vllm.device.emulator.process import Worker
from tiny_vllm.errors import CompileError, DeviceError, KernelCheckError, KernelError, LaunchError

_GRACE = 30.0  # seconds beyond the launch's own deadline: starting, loading, copying
_SETTINGS = ("timeout", "workers", "compute_capability", "check", "order")
_ERRORS = {each.__name__: each for each in (CompileError, LaunchError, DeviceError)}


@dataclass(frozen=True)
class View:
    """An array as a part of a span."""

    span: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype


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
        kind, text, printed, results = _ask(self._name, message, self._timeout + _GRACE)
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


def _ask(kernel: str, message: Any, patience: float) -> tuple[str, str, str, list[bytes]]:
    """Send one launch, and get its answer: (kind, text, printed, spans). patience: seconds."""
    try:
        answer: tuple[str, str, str, list[bytes]] = pickle.loads(_child().ask(pickle.dumps(message, 5), patience))
        return answer
    except TimeoutError:
        raise LaunchError(
            f"{kernel}: the launch timed out and was terminated (CUDA_ERROR_LAUNCH_TIMEOUT): "
            f"no answer from its process after {patience:g} s; is there an endless loop?"
        ) from None
    except EOFError as death:
        raise KernelError(f"{kernel}: {death}") from None


@lru_cache(maxsize=1)
def _child() -> Worker:
    path = [os.path.abspath(entry) for entry in sys.path]
    serve = "from tiny_vllm.device.emulator.isolated_child import run; run()"
    command = [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {path!r}; {serve}"]
    return Worker(command, {}, stderr=subprocess.DEVNULL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_child.cache_clear)
