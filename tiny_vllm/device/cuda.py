"""A GPU through CuPy: one stream, checked launches, graphs, and an allocator that can be told to refuse."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from tiny_vllm.device.cublas import WORKSPACE_BYTES, Cublas
from tiny_vllm.device.cuda_launch import CudaKernel, CudaModule, compile_kernel, compile_module
from tiny_vllm.device.cuda_stream import CudaEvent, CudaFetch, CudaGraph, cuda_words
from tiny_vllm.device.cupy_setup import check_toolkit, import_cupy
from tiny_vllm.device.source import as_dtype, load_source
from tiny_vllm.errors import DeviceError, KernelError
from tiny_vllm.types import Array

cupy = import_cupy()
runtime = cupy.cuda.runtime

COPY_BYTES, COPIES = 512 << 20, 20  # of `bandwidth`: far larger than any L2 cache


class Cuda:
    """The GPU that CUDA calls current. All work runs in `stream`, which also becomes CuPy's current stream here.

    The stream is an ordinary one, not a non-blocking one: CuPy calls of another thread, whose current stream is the
    default stream, still run in order with ours.
    """

    name = "cuda"

    def __init__(self) -> None:
        check_toolkit(cupy)
        device = cupy.cuda.Device()
        properties = runtime.getDeviceProperties(device.id)
        self.description: str = properties["name"].decode()
        self.num_multiprocessors = int(properties["multiProcessorCount"])
        self.compute_capability = int(device.compute_capability)
        self.default_dtype = "bfloat16" if self.compute_capability >= 80 else "float16"
        # Entered and never left: the end of any `with stream` goes back to the last stream entered, and forgets use().
        self.stream = cupy.cuda.Stream().__enter__()
        self._workspace = self.empty(WORKSPACE_BYTES, np.uint8)
        self._cublas = Cublas(self.stream.ptr, self._workspace.data.ptr)
        self._capturing: CudaGraph | None = None
        self._fetch: CudaKernel | None = None
        self._bandwidth: float | None = None
        self._checked = os.environ.get("TINY_VLLM_CHECK") == "1"

    # ---- arrays

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """An array with whatever its memory holds. Raises DeviceError when the GPU is full."""
        with self.stream, _out_of_memory_words():
            return cupy.empty(shape, as_dtype(dtype))

    def zeros(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """An array of zeros. Raises DeviceError when the GPU is full."""
        with self.stream, _out_of_memory_words():
            return cupy.zeros(shape, as_dtype(dtype))

    def asarray(self, host: Any, dtype: Any = None) -> Array:
        """Host values as a device array, contiguous; a device array is returned as it is, or converted."""
        wanted = None if dtype is None else as_dtype(dtype)
        if isinstance(host, cupy.ndarray):
            with self.stream, _out_of_memory_words():
                return host if wanted is None else host.astype(wanted, copy=False)
        values = np.asarray(host, wanted)
        array = self.empty(values.shape, values.dtype)
        self.copy_in(array, values)
        return array

    def copy_in(self, target: Array, host: Any) -> None:
        """Write host values into a device array that exists; they may be changed as soon as this returns."""
        values = np.asarray(host, target.dtype)
        if values.shape != target.shape:
            raise TypeError(f"copy_in: got values of shape {values.shape}, wanted {target.shape}, the target's")
        target.set(values, stream=self.stream)

    def to_host(self, array: Array) -> np.ndarray:
        """A NumPy copy, after everything launched so far; raises LaunchError when a kernel failed on the way."""
        with cuda_words():
            return array.get(stream=self.stream)

    def fetch(self, array: Array) -> CudaFetch:
        """Start a copy of a contiguous array to the host, behind everything launched so far; wait for nothing."""
        if self._fetch is None:
            self._fetch = self.RawKernel(load_source("fetch.cu"), "fetch")
        return CudaFetch(self.stream, array, self._fetch)

    # ---- kernels

    def RawKernel(self, code: str, name: str, options: tuple[str, ...] = (), **settings: Any) -> CudaKernel:
        """CuPy's RawKernel, compiled at once. Raises CompileError with the compiler's message."""
        return compile_kernel(self, code, name, tuple(options), settings)

    def RawModule(self, code: str, options: tuple[str, ...] = (), **settings: Any) -> CudaModule:
        """CuPy's RawModule, compiled at once. Raises CompileError with the compiler's message."""
        return compile_module(self, code, tuple(options), settings)

    def gemm(self, x: Array, weight: Array, out: Array, add: bool = False) -> None:
        """out = x @ weight.T, or out += with add; x (M,K), weight (N,K), out (M,N), sums in float32 (cuBLAS)."""
        if self._checked and not add:
            out.fill(0)  # initcheck does not see what cuBLAS writes in bulk copies, and would call it unwritten
        self._cublas.gemm(x, weight, out, add)
        self.hold((x, weight, out))

    def tuning(self) -> AbstractContextManager[None]:
        """Products of many rows inside are timed by every algorithm that holds, and so spoilt; the quickest one serves
        their shape from then on.
        """
        return self._cublas.tuning(self.event)

    # ---- the stream

    def synchronize(self) -> None:
        """Wait for everything launched so far; raises LaunchError when a kernel failed."""
        with cuda_words():
            self.stream.synchronize()

    def event(self) -> CudaEvent:
        return CudaEvent(self.stream)

    @contextmanager
    def capture(self) -> Iterator[CudaGraph]:
        """Launches inside are recorded into the graph, not run.

        An allocation inside is refused: its memory would belong to CuPy's pool again while the graph still uses it.
        Whatever goes wrong inside, the capture is ended first and that first cause raised.
        """
        graph = CudaGraph(self.stream)
        with self.stream, self.no_allocation():
            with cuda_words():
                self.stream.begin_capture()
            self._capturing = graph
            try:
                yield graph
            except BaseException:
                self._abandon_capture()
                raise
            finally:
                self._capturing = None
            with cuda_words():
                graph.instantiate(self.stream.end_capture())

    def _abandon_capture(self) -> None:
        """End a capture whose result is not wanted; CUDA ends one that went wrong too, and then complains."""
        try:
            unwanted = runtime.streamEndCapture(self.stream.ptr)
        except runtime.CUDARuntimeError:
            return
        if unwanted:
            runtime.graphDestroy(unwanted)

    def hold(self, arguments: tuple[Any, ...]) -> None:
        """Inside a capture, keep what a launch was given alive as long as the graph."""
        if self._capturing is not None:
            self._capturing.held.append(arguments)

    # ---- memory

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; what CuPy's pool keeps for reuse is free."""
        free, total = runtime.memGetInfo()
        return free + cupy.get_default_memory_pool().free_bytes(), total

    @contextmanager
    def no_allocation(self) -> Iterator[None]:
        """Any allocation of device memory inside raises KernelError (in this thread)."""
        with cupy.cuda.using_allocator(_refuse):
            yield

    def bandwidth(self) -> float:
        """Bytes a second of a large copy on the device, read and written bytes both counted; measured once."""
        if self._bandwidth is None:
            self._bandwidth = self._measure_bandwidth()
        return self._bandwidth

    def _measure_bandwidth(self) -> float:
        size = min(COPY_BYTES, self.memory_info()[0] // 4)
        source, target = self.zeros(size, np.uint8), self.zeros(size, np.uint8)
        start, end = self.event(), self.event()
        for index in range(COPIES + 1):
            if index == 1:  # the first copy warms up
                start.record()
            target.data.copy_from_device_async(source.data, size, self.stream)
        end.record()
        end.synchronize()
        del source, target
        cupy.get_default_memory_pool().free_all_blocks()
        return 2 * size * COPIES / (end.elapsed_ms(start) / 1e3)

    def close(self) -> None:
        """Give the memory back that no array uses; the device stays usable."""
        gc.collect()  # engines and caches may hang in cycles
        self.synchronize()
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def _refuse(size: int) -> Any:
    raise KernelError(f"an allocation of {size} bytes where none is allowed: a step writes into buffers made before it")


@contextmanager
def _out_of_memory_words() -> Iterator[None]:
    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        free, total = (count / 2**30 for count in runtime.memGetInfo())
        raise DeviceError(
            f"GPU memory is full ({error}; {free:.1f} of {total:.1f} GiB are free): choose a smaller model or a "
            "smaller max_model_len, or end other programs on this GPU"
        ) from None
