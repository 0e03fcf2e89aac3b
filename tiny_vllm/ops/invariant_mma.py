"""The product of batch-invariant mode on tensor cores: launcher of linear_mma.cu, and the rule of where it holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiny_vllm.device.base import Device, Kernel
from tiny_vllm.device.source import as_dtype, load_source, required_capability, scalar_options
from tiny_vllm.types import Array

FILE = "linear_mma.cu"
THREADS = 128
SLICES_BYTES = 4 * 3 * 64  # WARPS * STAGES * ROW_BYTES: of shared memory, for each row and column of a tile
TILES = {16: (16, 16), 128: (64, 32)}  # up to so many rows of x: rows and columns of out, for each block
LARGEST_TILE = (64, 64)


def what_is_missing(device: Device, dtype: Any) -> str:
    """Why the kernel does not hold here, or "" where it does; kernels/linear.cu, which holds everywhere, stands in."""
    needs = required_capability(load_source(FILE))
    if device.compute_capability < needs:
        return f"the device is sm_{device.compute_capability}; needed: sm_{needs}"
    if as_dtype(dtype).itemsize != 2:
        return f"the element type is {as_dtype(dtype)}; supported: bfloat16 and float16"
    return ""


class MmaProduct:
    """x (M,K) @ weight (N,K) transposed; a row of the result has the same bits for every M, whatever the tile."""

    def __init__(self, device: Device, dtype: Any) -> None:
        self._device, self._dtype = device, dtype
        self._kernels: dict[tuple[str, tuple[int, int]], Kernel] = {}

    def holds(self, weight: Array) -> bool:
        """Whether rows of this weight, and those of an x as long, come in whole loads of 16 bytes."""
        return bool(weight.shape[1] % 8 == 0)

    def __call__(self, x: Array, weight: Array, out: Array, add: bool) -> None:
        """out (M,N), of the element type or float32, = the product, or += with add; the caller checks the shapes."""
        (rows, inner), columns = x.shape, len(weight)
        tile = next((tile for most, tile in TILES.items() if rows <= most), LARGEST_TILE)
        grid = (-(-columns // tile[1]), -(-rows // tile[0]))
        name = "linear_mma_float" if as_dtype(out.dtype) == np.float32 else "linear_mma"
        if all(grid):
            arguments = (x, weight, out, rows, columns, inner, int(add))
            self._kernel(name, tile)(grid, (THREADS,), arguments, shared_mem=_shared_bytes(tile))

    def _kernel(self, name: str, tile: tuple[int, int]) -> Kernel:
        if (name, tile) not in self._kernels:
            options = (*scalar_options(self._dtype), f"-DROWS={tile[0]}", f"-DCOLUMNS={tile[1]}")
            kernel = self._device.RawModule(load_source(FILE), options=options).get_function(name)
            kernel.max_dynamic_shared_size_bytes = _shared_bytes(tile)  # type: ignore[attr-defined]
            self._kernels[name, tile] = kernel
        return self._kernels[name, tile]


def _shared_bytes(tile: tuple[int, int]) -> int:
    return SLICES_BYTES * sum(tile)
