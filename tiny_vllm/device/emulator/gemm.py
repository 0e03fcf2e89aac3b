"""x @ weight.T by NumPy's BLAS, with sums in float32, for float32, float16 and bfloat16 arrays."""

from __future__ import annotations

import weakref
from typing import Any

import ml_dtypes
import numpy as np

from tiny_vllm.errors import LaunchError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_DTYPES = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)


def widen(array: np.ndarray) -> np.ndarray:
    """The same values in float32; float32 arrays come back as they are."""
    if array.dtype == BFLOAT16:  # the upper half of a float: a shift, several times faster than a cast
        wide = np.left_shift(array.view(np.uint16), 16, dtype=np.uint32)
        return wide.view(np.float32)
    return array.astype(np.float32, copy=False)


def check_gemm(x: np.ndarray, weight: np.ndarray, out: np.ndarray) -> None:
    """Raises TypeError or LaunchError, naming the shapes or types, for a product that does not fit together."""
    for name, array in (("x", x), ("weight", weight), ("out", out)):
        if not isinstance(array, np.ndarray) or array.dtype not in _DTYPES:
            got = getattr(array, "dtype", type(array).__name__)
            raise TypeError(f"gemm: {name} is {got}, wanted an array of float32, float16 or bfloat16")
    fits = x.ndim == weight.ndim == out.ndim == 2 and x.shape[1] == weight.shape[1]
    if not fits or out.shape != (x.shape[0], weight.shape[0]):
        raise LaunchError(
            f"gemm: x {x.shape}, weight {weight.shape}, out {out.shape} do not fit; wanted (M, K), (N, K), (M, N)"
        )
    if not out.flags.writeable:
        raise TypeError("gemm: out is read-only")


class Gemm:
    """out = x @ weight.T, or out += x @ weight.T.

    A 16-bit weight that nobody can write (weights are made read-only once they are loaded) is widened to float32 once
    and kept as long as it lives; one that can be written is widened at each call.
    """

    def __init__(self) -> None:
        self._wide: dict[tuple[Any, ...], np.ndarray] = {}
        self._scratch = np.empty(0, np.float32)

    def __call__(self, x: np.ndarray, weight: np.ndarray, out: np.ndarray, add: bool = False) -> None:
        """x (M,K), weight (N,K), out (M,N), checked by check_gemm."""
        wide_x, wide_weight = widen(x), self._widened(weight)
        if not add and out.dtype == np.float32 and out.flags.c_contiguous:
            np.matmul(wide_x, wide_weight.T, out=out)  # one row, too: a matrix-vector form is no quicker
            return
        sums = self._sums(out.shape)
        np.matmul(wide_x, wide_weight.T, out=sums)
        if add:
            sums += widen(out)
        out[...] = sums

    def clear(self) -> None:
        """Give the widened weights back."""
        self._wide.clear()
        self._scratch = np.empty(0, np.float32)

    def _sums(self, shape: tuple[int, ...]) -> np.ndarray:
        """Room for the product, used again at the next call."""
        size = shape[0] * shape[1]
        if self._scratch.size < size:
            self._scratch = np.empty(size, np.float32)
        return self._scratch[:size].reshape(shape)

    def _widened(self, weight: np.ndarray) -> np.ndarray:
        if weight.dtype == np.float32:
            return weight
        owner = _read_only_owner(weight)
        if owner is None:
            return widen(weight)
        key = (id(owner), weight.__array_interface__["data"][0], weight.shape, weight.strides, weight.dtype)
        wide = self._wide.get(key)
        if wide is None:
            wide = self._wide[key] = widen(weight)
            weakref.finalize(owner, self._wide.pop, key, None)
        return wide


def _read_only_owner(array: np.ndarray) -> np.ndarray | None:
    """The array whose memory a view shows; None where some array of the chain can be written."""
    while not array.flags.writeable:
        if not isinstance(array.base, np.ndarray):
            return array
        array = array.base
    return None
