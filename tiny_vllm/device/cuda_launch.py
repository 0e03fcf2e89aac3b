"""CuPy's RawKernel and RawModule with checked arguments, compiled at once and launched in the device's stream."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tiny_vllm.device.base import Dim
from tiny_vllm.device.cuda_cubin import cubin_file
from tiny_vllm.device.cuda_driver import COOPERATIVE, FIRST_DRIVER, PROGRAMMATIC, launch_with
from tiny_vllm.device.cupy_setup import import_cupy
from tiny_vllm.device.signature import Signature, parse_parameters
from tiny_vllm.device.source import COMMON_OPTIONS, only_architecture, runs_on, source_label
from tiny_vllm.errors import CompileError, DeviceError, LaunchError, UserError

cupy = import_cupy()
runtime = cupy.cuda.runtime

LARGEST = 2**31 - 1  # of a grid's x; CuPy would cut a larger one off, and make a zero or less a 1
DriverError = cupy.cuda.driver.CUDADriverError


class Owner(Protocol):
    """The device that a kernel runs on."""

    @property
    def stream(self) -> Any: ...
    @property
    def description(self) -> str: ...
    @property
    def compute_capability(self) -> int: ...
    def hold(self, arguments: tuple[Any, ...]) -> None: ...


class CudaKernel:
    """A compiled `__global__` function; kernel(grid, block, args, shared_mem=bytes) checks and launches.

    programmatic: the kernel may begin while the one before it ends, where the GPU and its driver can do that.
    cooperative, an attribute to be set: all blocks run at the same time, or LaunchError; can be captured into a graph.
    """

    def __init__(self, device: Owner, raw: Any, name: str, signature: Signature) -> None:
        self.name = name
        self._device, self._raw, self._signature = device, raw, signature
        self._function = raw.kernel  # RawKernel's own call looks this up again each time
        self._cooperative = bool(raw.enable_cooperative_groups)
        self.cooperative = False
        self._can_overlap = device.compute_capability >= 90 and runtime.driverGetVersion() >= FIRST_DRIVER

    def __call__(
        self, grid: Dim, block: Dim, args: Sequence[Any], *, shared_mem: int = 0, programmatic: bool = False
    ) -> None:
        """Raises TypeError for a wrong argument, LaunchError in CUDA's words for a launch that it refuses."""
        passed = self._signature.check(args)
        if min(*grid, *block) < 1 or max(grid) > LARGEST or len(grid) > 3 or len(block) > 3:
            raise self._refused("CUDA_ERROR_INVALID_VALUE: invalid argument", grid, block, shared_mem)
        if self.cooperative or (programmatic and self._can_overlap):
            self._launch_with(COOPERATIVE if self.cooperative else PROGRAMMATIC, grid, block, passed, shared_mem)
            return
        try:
            self._function(tuple(grid), tuple(block), passed, shared_mem, self._device.stream, self._cooperative)
        except DriverError as error:
            raise self._refused(error, grid, block, shared_mem) from error
        self._device.hold(passed)

    def _launch_with(self, attribute: int, grid: Dim, block: Dim, passed: tuple[Any, ...], shared_mem: int) -> None:
        try:
            launch_with(attribute, self._function.ptr, grid, block, passed, shared_mem, self._device.stream.ptr)
        except LaunchError as error:
            raise self._refused(error, grid, block, shared_mem) from None
        self._device.hold(passed)

    def _refused(self, words: Any, grid: Dim, block: Dim, shared_mem: int) -> LaunchError:
        return LaunchError(
            f"{self.name}: {words} (grid {grid}, block {block}, {shared_mem} B of dynamic shared memory)"
        )

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Bytes of dynamic shared memory that a launch may ask for; more than 48 KiB must be set here first."""
        return int(self._raw.max_dynamic_shared_size_bytes)

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        try:
            self._raw.max_dynamic_shared_size_bytes = size
        except DriverError as error:
            raise LaunchError(f"{self.name}: {error} ({size} bytes of dynamic shared memory)") from error

    @property
    def preferred_shared_memory_carveout(self) -> int:
        """Percent of a multiprocessor's memory that is shared memory, the rest being L1; -1 leaves it to the driver."""
        return int(self._raw.preferred_shared_memory_carveout)

    @preferred_shared_memory_carveout.setter
    def preferred_shared_memory_carveout(self, percent: int) -> None:
        self._raw.preferred_shared_memory_carveout = percent


class CudaModule:
    """A compiled .cu file."""

    def __init__(self, device: Owner, raw: Any, code: str, options: tuple[str, ...]) -> None:
        self._device, self._raw, self._code, self._options = device, raw, code, options

    def get_function(self, name: str) -> CudaKernel:
        """The kernel of that name. Raises KernelError naming those that are there."""
        signature = Signature(name, parse_parameters(self._code, name, self._options), cupy.ndarray)
        return CudaKernel(self._device, self._raw.get_function(name), name, signature)


def compile_kernel(
    device: Owner, code: str, name: str, options: tuple[str, ...], settings: dict[str, Any]
) -> CudaKernel:
    """settings: those of cupy.RawKernel, such as enable_cooperative_groups."""
    if only_architecture(code):
        return compile_module(device, code, options, settings).get_function(name)
    signature = Signature(name, parse_parameters(code, name, options), cupy.ndarray)
    raw = cupy.RawKernel(code, name, (*COMMON_OPTIONS, *_line_info(), *options), **_settings(settings))
    _compile(lambda: raw.kernel)
    return CudaKernel(device, raw, name, signature)


def compile_module(device: Owner, code: str, options: tuple[str, ...], settings: dict[str, Any]) -> CudaModule:
    """settings: those of cupy.RawModule, such as name_expressions."""
    flags, settings = (*COMMON_OPTIONS, *_line_info(), *options), _settings(settings)
    if architecture := only_architecture(code):
        raw = _module_of_one_architecture(device, code, architecture, flags, settings)
    else:
        raw = cupy.RawModule(code=code, options=flags, **settings)
    _compile(lambda: raw.module)
    return CudaModule(device, raw, code, options)


def _module_of_one_architecture(
    device: Owner, code: str, architecture: str, flags: tuple[str, ...], settings: dict[str, Any]
) -> Any:
    """The cupy.RawModule of a source with a line such as `requires: sm_90a`."""
    if not runs_on(code, device.compute_capability):
        raise DeviceError(
            f"{source_label(code)} requires sm_{architecture} and runs on no other architecture; {device.description} "
            f"is sm_{device.compute_capability}: launch the kernel that stands in for it there"
        )
    if other := settings.keys() - {"enable_cooperative_groups"}:
        raise UserError(
            f"{source_label(code)} requires sm_{architecture}, where {', '.join(sorted(other))} cannot be given: leave "
            'it out, and make the kernels extern "C"'
        )
    return cupy.RawModule(path=str(cubin_file(code, architecture, flags)), **settings)


def _line_info() -> tuple[str, ...]:
    """Under `tiny-vllm check` compute-sanitizer names the line."""
    return ("-lineinfo",) if os.environ.get("TINY_VLLM_CHECK") == "1" else ()


def _settings(settings: dict[str, Any]) -> dict[str, Any]:
    if settings.get("check"):
        raise UserError(
            "check=True is the emulator's: a GPU does not watch its kernels; use the device emulator, or run the "
            "script by `tiny-vllm check`"
        )
    return {key: value for key, value in settings.items() if key != "check"}


def _compile(step: Callable[[], Any]) -> None:
    """Compile now, so that an error comes where the source is given and a capture meets no compiler."""
    try:
        step()
    except cupy.cuda.compiler.CompileException as error:
        raise CompileError(str(error)) from None
    except OSError as error:  # the cache folder is full, over quota or gone
        message = f"CuPy's cache cannot be written to ({error}); kernels stay in memory"
        warnings.warn(message, RuntimeWarning, stacklevel=4)
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # read at each compilation
        step()
