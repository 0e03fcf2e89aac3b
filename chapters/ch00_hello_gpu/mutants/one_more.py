# wrong because: always one block more | caught by: basic/256 t64 |
# looks right on: a last block that is not full | exercise: 0.1

from __future__ import annotations

from typing import Any

import numpy as np

from tiny_vllm.device.base import Device, Kernel
from tiny_vllm.device.source import load_source

SOURCE = "ch00_hello_gpu/hello.cu"


def compile_kernel(device: Device, name: str) -> Kernel:
    """A kernel of hello.cu, ready to be launched."""
    return device.RawKernel(load_source(SOURCE), name)


def num_blocks(n: int, threads: int) -> int:
    """How many blocks of `threads` threads give every one of n elements a thread, and no block more."""
    # EXERCISE-BEGIN 0.1 (about 1 line): return the number of blocks; n and threads are whole numbers from 1 on
    return n // threads + 1
    # EXERCISE-END 0.1


def vector_add(device: Device, a: Any, b: Any, threads: int = 128) -> np.ndarray:
    """a + b on the device: two host arrays (n,) -> a host array (n,) float32."""
    a_device, b_device = device.asarray(a, np.float32), device.asarray(b, np.float32)
    total = device.empty(a_device.shape, np.float32)
    n = a_device.size
    if n:  # a grid of no blocks is an error
        kernel = compile_kernel(device, "vector_add")
        kernel((num_blocks(n, threads),), (threads,), (a_device, b_device, total, n))
    return device.to_host(total)


def which_thread(device: Device, n: int, threads: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """For each of n elements, the number of the block and of the thread in it that owns it: two (n,) int32."""
    block, thread = device.empty(n, np.int32), device.empty(n, np.int32)
    if n:
        compile_kernel(device, "which_thread")((num_blocks(n, threads),), (threads,), (block, thread, n))
    return device.to_host(block), device.to_host(thread)
