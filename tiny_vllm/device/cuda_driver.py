"""cuLaunchKernelEx by ctypes: launches with an attribute, which CuPy's does not take.

PROGRAMMATIC is programmatic dependent launch, sm_90 and newer: the kernel may begin while the one before it ends, and
says itself, by the functions of kernels/ptx.cuh, when the next one may begin and where it must wait for the last one.
COOPERATIVE: all blocks run at the same time, or the launch is refused. (CuPy has it too, but links a library for it
that need not be installed.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tiny_vllm.errors import LaunchError

COOPERATIVE, PROGRAMMATIC = 2, 6  # CUlaunchAttributeID
FIRST_DRIVER = 12_030  # that captures such launches into a graph


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes whose first word is the flag that we set."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("flag", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


def launch_with(
    attribute: int,
    function: int,
    grid: Sequence[int],
    block: Sequence[int],
    args: Sequence[Any],
    shared_mem: int,
    stream: int,
) -> None:
    """Launch a CUfunction with an attribute; args: device arrays and NumPy scalars, checked by the caller.

    Raises LaunchError with CUDA's name of what it refuses.
    """
    attributes = ctypes.pointer(_Attribute(attribute, 0, 1, b""))
    config = _Config(_three(grid), _three(block), shared_mem, stream, attributes, 1)
    values = [_value(arg) for arg in args]
    pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
    driver = _driver()
    status = driver.cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function), pointers, None)
    if status:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(status, ctypes.byref(name))
        raise LaunchError((name.value or b"unknown error").decode())


def _three(sizes: Sequence[int]) -> Any:
    return (ctypes.c_uint * 3)(*sizes, *[1] * (3 - len(sizes)))


def _value(arg: Any) -> np.ndarray:
    """What the driver copies into the launch: a scalar, or an array's address."""
    return np.array(arg) if isinstance(arg, np.generic) else np.array(arg.data.ptr, np.uint64)


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")  # CuPy has loaded it
