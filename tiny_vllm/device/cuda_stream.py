"""What the GPU's stream hands out: events, graphs, values on their way to the host; and its errors in CUDA's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tiny_vllm.device.cupy_setup import import_cupy
from tiny_vllm.errors import LaunchError
from tiny_vllm.types import Array

cupy = import_cupy()
runtime = cupy.cuda.runtime

# What a kernel that failed leaves behind: CUDA reports it at some later call, and at every call from then on.
FAILED_KERNEL = ("Illegal", "ILLEGAL", "Misaligned", "LaunchFailure", "LaunchTimeout", "Assert", "InvalidPc")
AFTER_A_FAILED_KERNEL = (
    "any kernel launched before may be the cause, and this process can use the GPU no more; run it on the emulator in "
    "check mode, which names the line"
)


@contextmanager
def cuda_words() -> Iterator[None]:
    """CUDA's own words about what failed, as LaunchError."""
    try:
        yield
    except (runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        failed = any(name in str(error) for name in FAILED_KERNEL)
        raise LaunchError(f"{error}; {AFTER_A_FAILED_KERNEL}" if failed else str(error)) from error


class CudaEvent:
    """A mark in the device's stream."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.event = stream, cupy.cuda.Event()

    def record(self) -> None:
        self.event.record(self._stream)

    def synchronize(self) -> None:
        with cuda_words():
            self.event.synchronize()

    def elapsed_ms(self, start: Any) -> float:
        with cuda_words():
            return float(cupy.cuda.get_elapsed_time(start.event, self.event))


FEW_BYTES = 8192  # up to here a kernel copies words in less time than the driver's copy takes to begin
FETCH_THREADS = 256


class CudaFetch:
    """A copy to page-locked host memory, which alone can go on while Python does. kernel: of kernels/fetch.cu."""

    def __init__(self, stream: Any, array: Array, kernel: Any) -> None:
        memory = cupy.cuda.alloc_pinned_memory(max(array.nbytes, 1))
        self._values = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
        self._source = array  # alive until it has been read
        self._event = CudaEvent(stream)
        with cuda_words():
            if 0 < array.nbytes <= FEW_BYTES and array.itemsize == 4:
                words = array.reshape(-1).view(np.uint32)
                kernel((1,), (FETCH_THREADS,), (words, _reach(memory, words.size), words.size))
            else:
                kind = runtime.memcpyDeviceToHost
                runtime.memcpyAsync(self._values.ctypes.data, array.data.ptr, array.nbytes, kind, stream.ptr)
            self._event.record()

    def wait(self) -> np.ndarray:
        self._event.synchronize()
        return self._values


def _reach(memory: Any, count: int) -> Array:
    """Page-locked memory as an array (count,) uint32 that kernels can be given."""
    owned = cupy.cuda.UnownedMemory(memory.ptr, 4 * count, memory)
    return cupy.ndarray((count,), np.uint32, cupy.cuda.MemoryPointer(owned, 0))


class CudaGraph:
    """A captured sequence of launches; it keeps the arrays alive that the launches were given."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._graph: Any = None
        self.held: list[Any] = []

    def instantiate(self, graph: Any) -> None:
        graph.upload(self._stream)
        self._graph = graph

    def launch(self) -> None:
        if self._graph is None:
            raise LaunchError("the graph's capture is not complete; launch it after the with block")
        with cuda_words():
            self._graph.launch(self._stream)
