"""Memory that nothing has written: what `empty` fills an array with, and which elements still hold it.

The pattern is a NaN for floats and an enormous number for integers, so that a kernel which reads it shows it in fast
mode too. Check mode takes an element that holds it, and that the launch has not written, for one that nothing wrote.
"""

from __future__ import annotations

import weakref
from functools import lru_cache
from typing import Any

import numpy as np

PATTERN = 0x7FA5  # kPoison of cpp/check/accesses.h: every two bytes of the array


def poison(array: np.ndarray) -> np.ndarray:
    """Fill a contiguous array with the pattern. Elements of one byte are left as they are: they have no spare value."""
    if array.itemsize > 1 and array.itemsize % 2 == 0 and array.size:
        array.reshape(-1).view(np.uint16)[...] = PATTERN
        key, low = id(array), array.__array_interface__["data"][0]
        _live()[key] = (low, low + array.nbytes)
        weakref.finalize(array, _live().pop, key, None).atexit = False
    return array


def is_poisoned(low: int, size: int) -> bool:
    """Whether a stretch of memory has a part of an array that `poison` filled, and that still lives."""
    stretches = list(_live().values())  # a collection of garbage in between may end arrays
    return any(low < end and begin < low + size for begin, end in stretches)


@lru_cache(maxsize=1)
def _live() -> dict[int, tuple[int, int]]:
    """The process's arrays from `empty`: begin and end in memory."""
    return {}


def never_written(array: Any) -> np.ndarray:
    """Which elements of an array from `empty` nothing has written, as booleans of its shape.

    An array of one-byte elements is all False: they hold no pattern.
    """
    host = np.ascontiguousarray(array)
    if host.itemsize < 2 or host.itemsize % 2:
        return np.zeros(host.shape, bool)
    halves = host.reshape(-1).view(np.uint16).reshape(-1, host.itemsize // 2)
    return (halves == PATTERN).all(axis=1).reshape(host.shape)
