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

_FLOAT32 = np.dtype(np.float32)
_TYPES = {_FLOAT32: 0, np.dtype(np.float16): 2, np.dtype(ml_dtypes.bfloat16): 14}  # cudaDataType
_NAMES = {code: dtype.name for dtype, code in _TYPES.items()}
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
        self._lt: CublasLt | None = None  # made when a first shape is tuned, for all of them
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
        shape = _checked_shape(x, weight, out)
        if shape.m == 0 or shape.n == 0:
            return
        if self._event and shape.m >= TUNED_ROWS and shape not in self._tuned:
            self._tuned[shape] = self._tune(shape, x, weight, out, add)
        places = x.data.ptr, weight.data.ptr, out.data.ptr
        if plan := self._tuned.get(shape):
            plan.run(*places, add)
        else:
            self._gemm_ex(shape, *places, add)

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
        self._lt = self._lt or CublasLt(_load("cublasLt"), *self._places, WORKSPACE_BYTES)
        plans = self._lt.plans(shape)
        places = x.data.ptr, weight.data.ptr, out.data.ptr, add
        runs: list[Callable[[], None]] = [lambda: self._gemm_ex(shape, *places)]
        runs += [lambda plan=plan: plan.run(*places) for plan in plans]  # type: ignore[misc]
        best = quickest(runs, self._event)
        return plans[best - 1] if best else None

    def _gemm_ex(self, s: Shape, x: int, weight: int, out: int, add: bool) -> None:
        """Launch by cuBLAS's first guess; addresses on the device."""
        # cuBLAS is column-major: it sees the memory of a row-major (R,C) array as its (C,R) transpose. So x is (K,M)
        # to it, weight (K,N) and out (N,M), and out = x @ weight.T reads transposed as
        #     out^T (N,M) = weight (N,K) @ x^T (K,M):  op T of the weight it sees, op N of the x it sees.
        status = self._gemm(
            self._handle, _OP_T, _OP_N, s.n, s.m, s.k,
            ctypes.addressof(self._one), weight, s.dtype, s.weight_stride, x, s.dtype, s.x_stride,
            ctypes.addressof(self._one if add else self._zero), out, s.out_dtype, s.out_stride,
            _COMPUTE_32F, _DEFAULT_ALGORITHM,
        )  # fmt: skip
        if status:
            dtype, out_dtype = _NAMES[s.dtype], _NAMES[s.out_dtype]
            shapes = f"x {(s.m, s.k)} {dtype}, weight {(s.n, s.k)} {dtype}, out {(s.m, s.n)} {out_dtype}"
            raise KernelError(f"cublasGemmEx: {_STATUS.get(status, status)} ({shapes})")

    def _call(self, name: str, *args: Any) -> None:
        if status := getattr(self._library, name)(*args):
            raise KernelError(f"{name}: {_STATUS.get(status, status)}")


def _checked_shape(x: Array, weight: Array, out: Array) -> Shape:
    """The product's shape, after shapes and types are found to fit. Each attribute of an array takes its time."""
    m, k, x_stride, dtype = _matrix("x", x)
    n, weight_k, weight_stride, weight_dtype = _matrix("weight", weight)
    *out_shape, out_stride, out_dtype = _matrix("out", out)
    if weight_k != k or out_shape != [m, n]:
        raise LaunchError(f"gemm: x {x.shape}, weight {weight.shape}, out {out.shape}; wanted (M,K), (N,K) and (M,N)")
    if weight_dtype != dtype or out_dtype not in (dtype, _TYPES[_FLOAT32]):
        raise TypeError(
            f"gemm: x is {x.dtype}, weight {weight.dtype}, out {out.dtype}; wanted one type, and out of it or float32"
        )
    return Shape(m, n, k, x_stride, weight_stride, out_stride, dtype, out_dtype)


def _matrix(name: str, array: Array) -> tuple[int, int, int, int]:
    """Rows, columns, elements between rows, cudaDataType. A lone row may have any stride; cuBLAS wants its length."""
    shape, dtype = array.shape, _TYPES.get(array.dtype)
    if len(shape) != 2 or dtype is None:
        raise TypeError(f"gemm: {name} is {array.dtype} of shape {shape}; wanted a float matrix of two axes")
    (rows, columns), (between_rows, between_columns), size = shape, array.strides, array.itemsize
    if rows > 0 and columns > 1 and between_columns != size:
        raise TypeError(f"gemm: the rows of {name} are not contiguous (strides {array.strides} bytes); copy it")
    return rows, columns, max(between_rows // size, columns, 1), dtype


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
