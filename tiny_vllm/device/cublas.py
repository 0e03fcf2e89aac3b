"""cublasGemmEx by ctypes: the one library routine that the engine calls, with its sibling where a shape was tuned.

CuPy's own cuBLAS wrappers refuse stream capture, so the call goes straight to the library that CuPy would load.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from tiny_vllm.device.cublas_lt import CublasLt, Event, Plan, Shape, quickest
from tiny_vllm.errors import DeviceError, KernelError, LaunchError
from tiny_vllm.types import Array

TUNED_ROWS = 1024  # products of fewer rows have no steady shape
WORKSPACE_BYTES = 32 << 20  # what NVIDIA advises for Hopper; smaller GPUs use less of it

_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 2, np.dtype(ml_dtypes.bfloat16): 14}  # cudaDataType
_OP_N, _OP_T = 0, 1  # cublasOperation_t
_COMPUTE_32F = 68  # cublasComputeType_t: float32 products and sums for float32 inputs, never TF32
_DISALLOW_REDUCED_PRECISION_REDUCTION = 16  # cublasMath_t: parts of a split sum are added in float32 too
_DEFAULT_ALGORITHM = -1  # cublasGemmAlgo_t
_STATUS = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
    16: "CUBLAS_STATUS_LICENSE_ERROR",
}


class Cublas:
    """A cuBLAS handle bound to one stream and one workspace, both set before any capture."""

    def __init__(self, stream: int, workspace: int) -> None:
        """stream: a cudaStream_t; workspace: address of WORKSPACE_BYTES of device memory that outlives this object."""
        self._library = _load("cublas")
        self._places = stream, workspace
        self._tuned: dict[Shape, Plan | None] = {}
        self._event: Event | None = None  # while tuning
        self._gemm = self._library.cublasGemmEx
        i, p = ctypes.c_int, ctypes.c_void_p
        self._gemm.argtypes = [p, i, i, i, i, i, p, p, i, i, p, i, i, p, p, i, i, i, i]
        self._handle = ctypes.c_void_p()
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream))
        # Setting the stream gives the handle its default workspace back, so ours comes after it.
        self._call("cublasSetWorkspace_v2", self._handle, ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE_BYTES))
        self._call("cublasSetMathMode", self._handle, _DISALLOW_REDUCED_PRECISION_REDUCTION)

    def gemm(self, x: Array, weight: Array, out: Array, add: bool = False) -> None:
        """out = x @ weight.T, or out += with add; x (M,K), weight (N,K), out (M,N), sums in float32.

        x and weight have one type: float32, float16 or bfloat16; out has that type or float32. Rows are contiguous
        and may lie apart (column views).
        """
        m, n = _check(x, weight, out)[0], weight.shape[0]
        if m == 0 or n == 0:
            return
        if m >= TUNED_ROWS and (self._tuned or self._event):
            shape = _shape(x, weight, out)
            if self._event and shape not in self._tuned:
                self._tuned[shape] = self._tune(shape, x, weight, out, add)
            if plan := self._tuned.get(shape):
                plan.run(x.data.ptr, weight.data.ptr, out.data.ptr, add)
                return
        self._gemm_ex(x, weight, out, add)

    @contextmanager
    def tuning(self, event: Event) -> Iterator[None]:
        """Products of many rows inside are timed by every algorithm; the quickest serves their shape from then on.

        x and out are spoilt. event: makes one in the stream.
        """
        self._event = event
        try:
            yield
        finally:
            self._event = None

    def _tune(self, shape: Shape, x: Array, weight: Array, out: Array, add: bool) -> Plan | None:
        """The best plan of cublasLt; None where cublasGemmEx is as quick."""
        assert self._event is not None
        for row in range(0, len(x), len(weight)):  # numbers like those of a step: the power that they take counts
            few = x[row : row + len(weight)]
            few.data.copy_from_device(weight.data, few.nbytes)
        plans = CublasLt(_load("cublasLt"), *self._places, WORKSPACE_BYTES).plans(shape)
        places = x.data.ptr, weight.data.ptr, out.data.ptr, add
        runs: list[Callable[[], None]] = [lambda: self._gemm_ex(x, weight, out, add)]
        runs += [lambda plan=plan: plan.run(*places) for plan in plans]  # type: ignore[misc]
        best = quickest(runs, self._event)
        return plans[best - 1] if best else None

    def _gemm_ex(self, x: Array, weight: Array, out: Array, add: bool) -> None:
        (m, k), n = x.shape, weight.shape[0]
        # cuBLAS is column-major: it sees the memory of a row-major (R,C) array as its (C,R) transpose. So x is (K,M)
        # to it, weight (K,N) and out (N,M), and out = x @ weight.T reads transposed as
        #     out^T (N,M) = weight (N,K) @ x^T (K,M):  op T of the weight it sees, op N of the x it sees.
        status = self._gemm(
            self._handle, _OP_T, _OP_N, n, m, k,
            ctypes.addressof(self._one), weight.data.ptr, _TYPES[weight.dtype], _row_stride(weight),
            x.data.ptr, _TYPES[x.dtype], _row_stride(x),
            ctypes.addressof(self._one if add else self._zero), out.data.ptr, _TYPES[out.dtype], _row_stride(out),
            _COMPUTE_32F, _DEFAULT_ALGORITHM,
        )  # fmt: skip
        if status:
            shapes = f"x {x.shape} {x.dtype}, weight {weight.shape} {weight.dtype}, out {out.shape} {out.dtype}"
            raise KernelError(f"cublasGemmEx: {_STATUS.get(status, status)} ({shapes})")

    def _call(self, name: str, *args: Any) -> None:
        if status := getattr(self._library, name)(*args):
            raise KernelError(f"{name}: {_STATUS.get(status, status)}")


def _check(x: Array, weight: Array, out: Array) -> tuple[int, int]:
    """(M, K), after shapes and types are found to fit."""
    for name, array in (("x", x), ("weight", weight), ("out", out)):
        if array.ndim != 2 or array.dtype not in _TYPES:
            raise TypeError(f"gemm: {name} is {array.dtype} of shape {array.shape}; wanted a float matrix of two axes")
        if array.shape[0] > 0 and array.shape[1] > 1 and array.strides[1] != array.itemsize:
            raise TypeError(f"gemm: the rows of {name} are not contiguous (strides {array.strides} bytes); copy it")
    (m, k), (n, weight_k) = x.shape, weight.shape
    if weight_k != k or out.shape != (m, n):
        raise LaunchError(f"gemm: x {x.shape}, weight {weight.shape}, out {out.shape}; wanted (M,K), (N,K) and (M,N)")
    if weight.dtype != x.dtype or out.dtype not in (x.dtype, np.float32):
        raise TypeError(
            f"gemm: x is {x.dtype}, weight {weight.dtype}, out {out.dtype}; wanted one type, and out of it or float32"
        )
    return m, k


def _row_stride(array: Array) -> int:
    """Elements between rows; a lone row may have any stride, and cuBLAS wants at least its length."""
    return max(array.strides[0] // array.itemsize, array.shape[1], 1)


def _shape(x: Array, weight: Array, out: Array) -> Shape:
    strides = _row_stride(x), _row_stride(weight), _row_stride(out)
    (m, k), n = x.shape, weight.shape[0]
    return Shape(m, n, k, *strides, _TYPES[x.dtype], _TYPES[out.dtype])


def _load(name: str) -> ctypes.CDLL:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = load_nvidia_dynamic_lib(name).abs_path
    except (ImportError, RuntimeError):  # no pathfinder, or it finds none
        path = ctypes.util.find_library(name)
    if path is None:
        raise DeviceError(
            'cuBLAS is not installed; pip install "cuda-toolkit[cublas]==13.*" (12.* with a driver older than 580)'
        )
    return ctypes.CDLL(path)
