"""What CUDA refuses at a launch, refused in CUDA's words: sizes of grid, block and shared memory."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from tiny_vllm.errors import LaunchError

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65_535, 65_535)
STATIC_SHARED = 48 * 1024  # bytes a block may have without asking for more
# The most that a block may ask for (max_dynamic_shared_size_bytes), by compute capability.
_OPT_IN_SHARED = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99}  # KiB


class Shape(NamedTuple):
    """A launch that CUDA takes: three sizes each, and bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_mem: int

    @property
    def num_blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def num_threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


def opt_in_shared(compute_capability: int) -> int:
    """The most shared memory that a block can have on that architecture, in bytes."""
    return _OPT_IN_SHARED.get(compute_capability, 48) * 1024


def refuse(kernel: str, detail: str, code: str = "INVALID_VALUE", words: str = "invalid argument") -> LaunchError:
    return LaunchError(f"{kernel}: CUDA_ERROR_{code}: {words} ({detail})")


def check_shape(kernel: str, grid: Any, block: Any, shared_mem: Any, max_dynamic: int) -> Shape:
    """The launch's sizes; LaunchError names the first that CUDA refuses.

    max_dynamic: bytes of dynamic shared memory that the kernel may have.
    """
    grid, block = _three(kernel, "grid", grid), _three(kernel, "block", block)
    _check_sizes(kernel, "grid", grid, MAX_GRID)
    _check_sizes(kernel, "block", block, MAX_BLOCK)
    try:
        shape = Shape(grid, block, operator.index(shared_mem))
    except TypeError:
        raise TypeError(f"{kernel}: shared_mem is {shared_mem!r}; give a whole number of bytes") from None
    if shape.num_threads > MAX_THREADS:
        raise refuse(kernel, f"block of {shape.num_threads} threads; the limit is {MAX_THREADS}")
    if shape.shared_mem < 0:
        raise refuse(kernel, f"{shared_mem} bytes of dynamic shared memory")
    if shape.shared_mem > max_dynamic:
        raise refuse(
            kernel,
            f"{shape.shared_mem} bytes of dynamic shared memory; the limit is {max_dynamic}, which "
            "kernel.max_dynamic_shared_size_bytes raises",
        )
    return shape


def _three(kernel: str, what: str, sizes: Any) -> tuple[int, int, int]:
    if not isinstance(sizes, (tuple, list)) or not 1 <= len(sizes) <= 3:
        raise TypeError(f"{kernel}: {what} is {sizes!r}; give a tuple of one to three whole numbers, such as (4,)")
    try:
        x, y, z = (*map(operator.index, sizes), 1, 1)[:3]
    except TypeError:
        raise TypeError(f"{kernel}: {what} is {sizes!r}; its sizes must be whole numbers") from None
    return x, y, z


def _check_sizes(kernel: str, what: str, sizes: tuple[int, int, int], limits: tuple[int, int, int]) -> None:
    for axis, size, limit in zip("xyz", sizes, limits, strict=True):
        if size < 1:
            raise refuse(kernel, f"{what} {axis} is {size}; it must be at least 1")
        if size > limit:
            raise refuse(kernel, f"{what} {axis} is {size}; the limit is {limit}")
