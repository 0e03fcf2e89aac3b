"""The emulator: raw CUDA C on the CPU. The same .cu text, compiled by the host's C++ compiler, runs on NumPy arrays.

`Emulator` is the device; RawKernel and RawModule (launch.py) have CuPy's signatures. How a kernel runs is told in
cpp/cuda_emulator.h.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np

from tiny_vllm.device.base import Dim
from tiny_vllm.device.emulator.check.poison import poison
from tiny_vllm.device.emulator.compiler import find_compiler
from tiny_vllm.device.emulator.gemm import Gemm, check_gemm
from tiny_vllm.device.emulator.launch import RawKernel, RawModule
from tiny_vllm.device.emulator.settings import default_check
from tiny_vllm.device.emulator.stream import EmulatorEvent, EmulatorFetch, EmulatorGraph, Stream
from tiny_vllm.device.emulator.workers import default_workers
from tiny_vllm.device.source import as_dtype
from tiny_vllm.types import Array

__all__ = ["Emulator", "RawKernel", "RawModule"]

_READ_BYTES = 128 << 20
_MEASURE_SECONDS = 0.25
_POISONED_BYTES = 16 << 20  # a larger array is poisoned where all kernels are checked


class Emulator:
    """A CUDA device of compute capability 9.0 that is made of this machine's CPU. Arrays are NumPy's."""

    name = "emulator"
    default_dtype = "float32"

    def __init__(self, compute_capability: int = 90) -> None:
        """compute_capability: the architecture whose limits hold, 90 for sm_90."""
        self.compute_capability = compute_capability
        self._stream = Stream()
        self._gemm = Gemm()

    @cached_property
    def description(self) -> str:
        """ "emulator (g++ 12, 2 workers)"."""
        workers = default_workers()
        return f"emulator ({find_compiler().description}, {workers} worker{'s' if workers > 1 else ''})"

    # ---- arrays

    def empty(self, shape: int | Dim, dtype: Any) -> Array:
        """An array with anything in it: NaN if it is not too large, by which check mode knows what nothing wrote."""
        self._stream.about_to_allocate("empty")
        array = np.empty(shape, as_dtype(dtype))
        return poison(array) if array.nbytes <= _POISONED_BYTES or default_check() else array

    def zeros(self, shape: int | Dim, dtype: Any) -> Array:
        self._stream.about_to_allocate("zeros")
        return np.zeros(shape, as_dtype(dtype))

    def asarray(self, host: Any, dtype: Any = None) -> Array:
        """A contiguous copy of the host's values: later changes to them do not show here, as on a GPU."""
        self._stream.about_to_allocate("asarray")
        return np.array(host, None if dtype is None else as_dtype(dtype), order="C")

    def copy_in(self, target: Array, host: Any) -> None:
        """Write host values into an array that exists; their shape must be its shape."""
        self._stream.forbid_in_capture("copy_in")
        host = np.asarray(host)
        if host.shape != target.shape:
            raise ValueError(f"copy_in: the values have shape {host.shape}, the array has {target.shape}")
        target[...] = host

    def to_host(self, array: Array) -> np.ndarray:
        self._stream.forbid_in_capture("to_host")
        return np.array(array, order="C")

    def fetch(self, array: Array) -> EmulatorFetch:
        """A copy of the array as it is now: everything launched before has run."""
        return EmulatorFetch(self.to_host(array))

    # ---- kernels

    def RawKernel(self, code: str, name: str, options: Sequence[str] = (), **settings: Any) -> RawKernel:
        """settings: timeout (seconds), workers, isolated, check, count, order; see settings.Settings."""
        return RawKernel(code, name, options, **self._settings(settings))

    def RawModule(self, code: str, options: Sequence[str] = (), **settings: Any) -> RawModule:
        """settings: as RawKernel's, and name_expressions for instances of templates."""
        return RawModule(code, options, **self._settings(settings))

    def _settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"compute_capability": self.compute_capability, "recorder": self._stream, **settings}

    def gemm(self, x: Array, weight: Array, out: Array, add: bool = False) -> None:
        """out = x @ weight.T, or out += x @ weight.T; x (M,K), weight (N,K), out (M,N), sums in float32.

        Each may be float32, float16 or bfloat16. Raises LaunchError naming the shapes when they do not fit.
        """
        check_gemm(x, weight, out)
        if self._stream.capturing:
            self._stream.record(lambda: self._gemm(x, weight, out, add))
        else:
            self._gemm(x, weight, out, add)

    # ---- the stream

    def synchronize(self) -> None:
        self._stream.forbid_in_capture("synchronize")

    def event(self) -> EmulatorEvent:
        return EmulatorEvent(self._stream)

    def capture(self) -> AbstractContextManager[EmulatorGraph]:
        """Launches and gemms inside are recorded, not run; an allocation or a copy inside spoils the capture."""
        return self._stream.capture()

    # ---- memory

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of this machine's memory."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        try:
            with open("/proc/meminfo") as lines:
                free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        except (OSError, StopIteration):  # macOS tells nobody by file
            return total // 2, total
        return free, total

    def no_allocation(self) -> AbstractContextManager[None]:
        return self._stream.no_allocation()

    def bandwidth(self) -> float:
        return self._bandwidth

    @cached_property
    def _bandwidth(self) -> float:
        """A matrix times a vector reads every byte of the matrix once, with as many threads as BLAS has."""
        matrix, vector = np.ones((_READ_BYTES // 4096, 1024), np.float32), np.ones(1024, np.float32)
        result, best, end = matrix @ vector, float("inf"), time.perf_counter() + _MEASURE_SECONDS
        while time.perf_counter() < end:
            start = time.perf_counter()
            np.dot(matrix, vector, out=result)
            best = min(best, time.perf_counter() - start)
        return matrix.nbytes / best

    def close(self) -> None:
        """Give the widened weights back."""
        self._gemm.clear()
