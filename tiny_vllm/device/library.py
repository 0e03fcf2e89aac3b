"""The kernels of one element type and head size, compiled when they are first wanted and then kept."""

from __future__ import annotations

from typing import Any

from tiny_vllm.device.base import Device, Kernel, Module
from tiny_vllm.device.source import load_source, scalar_options, strip_comments


class KernelLibrary:
    """Finds .cu files along the overlay and compiles each once.

    dtype: what `scalar_t` is. head_dim: what `HEAD_DIM` is, for files that use it; others are not compiled again.
    """

    def __init__(self, device: Device, dtype: Any, head_dim: int | None = None) -> None:
        self._device = device
        self._scalar = scalar_options(dtype)
        self._head_dim = () if head_dim is None else (f"-DHEAD_DIM={head_dim}",)
        self._modules: dict[str, Module] = {}
        self._kernels: dict[tuple[str, str], Kernel] = {}

    def kernel(self, file: str, name: str) -> Kernel:
        """The `__global__` function `name` of a file such as "rms_norm.cu" or "ch03_rms_norm/rms_norm.cu"."""
        found = self._kernels.get((file, name))
        if found is None:
            found = self._kernels[file, name] = self._module(file).get_function(name)
        return found

    def _module(self, file: str) -> Module:
        if file not in self._modules:
            source = load_source(file)
            self._modules[file] = self._device.RawModule(source, options=self._options(source))
        return self._modules[file]

    def _options(self, source: str) -> tuple[str, ...]:
        """Only what the file uses: a kernel without HEAD_DIM is the same one for every model."""
        code = strip_comments(source)
        return (self._scalar if "SCALAR" in code else ()) + (self._head_dim if "HEAD_DIM" in code else ())
