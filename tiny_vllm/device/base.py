"""What a device offers: arrays, kernels, one GEMM, one stream. It knows nothing of language models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tiny_vllm.types import Array

Dim = tuple[int, ...]


class Kernel(Protocol):
    """A compiled `__global__` function, called as CuPy's: kernel(grid, block, args, shared_mem=bytes).

    programmatic: the kernel may begin while the one before it ends, and keeps the order itself, by the two functions
    of kernels/ptx.cuh: programmatic dependent launch. It makes no difference where a device cannot do that.
    """

    name: str

    def __call__(
        self, grid: Dim, block: Dim, args: Sequence[Any], *, shared_mem: int = 0, programmatic: bool = False
    ) -> None: ...


class Module(Protocol):
    """A compiled .cu file."""

    def get_function(self, name: str) -> Kernel: ...


class Event(Protocol):
    """A mark in the stream."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_ms(self, start: Event) -> float: ...


class Fetch(Protocol):
    """Values on their way to the host."""

    def wait(self) -> Any:
        """The values, a NumPy array, once they are there; what was launched after the fetch is not waited for."""


class Graph(Protocol):
    """A captured sequence of launches."""

    def launch(self) -> None: ...


class Device(Protocol):
    """`cuda` or `emulator`. Everything runs in one stream of the device, in order."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str:
        """Such as "NVIDIA H200" or "emulator (g++ 12, 2 workers)"."""

    @property
    def compute_capability(self) -> int:
        """90 for sm_90: the architecture whose limits hold."""

    @property
    def default_dtype(self) -> str:
        """What dtype "auto" means here when the checkpoint has no say: float32 on the emulator."""

    # arrays (bfloat16 is ml_dtypes.bfloat16)
    def empty(self, shape: int | Dim, dtype: Any) -> Array: ...
    def zeros(self, shape: int | Dim, dtype: Any) -> Array: ...
    def asarray(self, host: Any, dtype: Any = None) -> Array: ...
    def copy_in(self, target: Array, host: Any) -> None:
        """Write host values into a device array that exists, without allocating."""

    def to_host(self, array: Array) -> Any:
        """A NumPy copy, after everything launched so far."""

    def fetch(self, array: Array) -> Fetch:
        """Start a copy to the host behind everything launched so far, and wait for nothing."""

    # kernels
    def RawKernel(self, code: str, name: str, options: tuple[str, ...] = (), **settings: Any) -> Kernel: ...
    def RawModule(self, code: str, options: tuple[str, ...] = (), **settings: Any) -> Module: ...
    def gemm(self, x: Array, weight: Array, out: Array, add: bool = False) -> None:
        """out = x @ weight.T, or out += x @ weight.T; x (M,K), weight (N,K), out (M,N), sums in float32."""

    # the stream
    def synchronize(self) -> None: ...
    def event(self) -> Event: ...
    def capture(self) -> AbstractContextManager[Graph]:
        """with device.capture() as graph: launches are recorded, not run; graph.launch() runs them."""

    # memory
    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes."""

    def no_allocation(self) -> AbstractContextManager[None]:
        """Any allocation inside raises: a step owns no memory of its own."""

    def bandwidth(self) -> float:
        """Bytes a second that a large read reaches, measured once (about a quarter of a second)."""

    def close(self) -> None:
        """Give cached memory back."""
