"""cublasLtMatmul by ctypes: a product by an algorithm of one's choice, where cublasGemmEx takes its first guess.

For a shape that comes again and again it pays to time the guesses: on an H200 the first of them is up to 9% slower than
the best. All of those compared give the same bits, since none divides a sum.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tiny_vllm.errors import KernelError

MOST_ALGORITHMS = 16  # that cuBLAS is asked for; it knows 8 or so for a shape
ROUNDS, REPEATS = 3, 3  # of timing: every algorithm in turn, and again

_TRANSPOSE_A = 3  # cublasLtMatmulDescAttributes_t
_WORKSPACE_BYTES, _REDUCTION_SCHEMES = 1, 3  # cublasLtMatmulPreferenceAttributes_t
_NO_REDUCTION = 0  # cublasLtReductionScheme_t: no algorithm that adds up parts of a sum in another order
_COMPUTE_32F, _FLOAT32 = 68, 0  # cublasComputeType_t, cudaDataType
_OP_T = 1  # cublasOperation_t

Event = Callable[[], Any]


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t, which only cuBLAS reads."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Guess(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Shape(NamedTuple):
    """out (m,n) = x (m,k) @ weight (n,k) transposed, with elements between rows; cudaDataType of each."""

    m: int
    n: int
    k: int
    x_stride: int
    weight_stride: int
    out_stride: int
    dtype: int
    out_dtype: int


class Plan:
    """A shape and the algorithm for it."""

    def __init__(self, library: CublasLt, shape: Shape, algorithm: _Algorithm) -> None:
        self._library, self._algorithm = library, algorithm
        self._layouts = library.layouts(shape)

    def run(self, x: int, weight: int, out: int, add: bool) -> None:
        """Launch; addresses on the device."""
        self._library.multiply(self._layouts, self._algorithm, x, weight, out, add)


class CublasLt:
    """A cublasLt handle, one stream and one workspace."""

    def __init__(self, library: Any, stream: int, workspace: int, workspace_bytes: int) -> None:
        """library: libcublasLt; the workspace is device memory that outlives this object."""
        self._library, self._stream, self._workspace = library, stream, (workspace, workspace_bytes)
        i, p, size = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
        library.cublasLtMatmul.argtypes = [p] * 14 + [size, p]
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._handle = self._made("cublasLtCreate")
        self._product = self._made("cublasLtMatmulDescCreate", i(_COMPUTE_32F), i(_FLOAT32))
        self._set("cublasLtMatmulDescSetAttribute", self._product, _TRANSPOSE_A, i(_OP_T))
        self._wish = self._made("cublasLtMatmulPreferenceCreate")
        set_wish = "cublasLtMatmulPreferenceSetAttribute"
        self._set(set_wish, self._wish, _WORKSPACE_BYTES, size(workspace_bytes))
        self._set(set_wish, self._wish, _REDUCTION_SCHEMES, ctypes.c_uint32(_NO_REDUCTION))

    def plans(self, shape: Shape) -> list[Plan]:
        """A plan for each algorithm that cuBLAS holds for good, the best guess first."""
        weight, x, out = self.layouts(shape)
        guesses, count = (_Guess * MOST_ALGORITHMS)(), ctypes.c_int()
        places = (self._handle, self._product, weight, x, out, out, self._wish, ctypes.c_int(MOST_ALGORITHMS))
        self._call("cublasLtMatmulAlgoGetHeuristic", *places, guesses, ctypes.byref(count))
        return [Plan(self, shape, guess.algorithm) for guess in guesses[: count.value] if guess.status == 0]

    def layouts(self, shape: Shape) -> tuple[Any, Any, Any]:
        """weight, x and out as cuBLAS sees them, column-major: (k,n), (k,m) and (n,m)."""
        s = shape
        return (
            self._layout(s.dtype, s.k, s.n, s.weight_stride),
            self._layout(s.dtype, s.k, s.m, s.x_stride),
            self._layout(s.out_dtype, s.n, s.m, s.out_stride),
        )

    def multiply(self, layouts: tuple[Any, Any, Any], algorithm: Any, x: int, weight: int, out: int, add: bool) -> None:
        """Launch out = weight^T x, or out += with add."""
        one, scale = ctypes.addressof(self._one), ctypes.addressof(self._one if add else self._zero)
        weight_layout, x_layout, out_layout = layouts
        matrices = (weight, weight_layout, x, x_layout, scale, out, out_layout, out, out_layout)
        how = (ctypes.addressof(algorithm), *self._workspace, self._stream)
        self._check("cublasLtMatmul", self._library.cublasLtMatmul(self._handle, self._product, one, *matrices, *how))

    def _layout(self, dtype: int, rows: int, columns: int, stride: int) -> Any:
        shape = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(stride)
        return self._made("cublasLtMatrixLayoutCreate", ctypes.c_int(dtype), *shape)

    def _made(self, name: str, *args: Any) -> Any:
        made = ctypes.c_void_p()
        self._call(name, ctypes.byref(made), *args)
        return made

    def _set(self, name: str, target: Any, attribute: int, value: Any) -> None:
        self._call(name, target, ctypes.c_int(attribute), ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def _call(self, name: str, *args: Any) -> None:
        self._check(name, getattr(self._library, name)(*args))

    def _check(self, name: str, status: int) -> None:
        if status:
            raise KernelError(f"{name}: status {status}")


def quickest(runs: Sequence[Callable[[], None]], event: Event) -> int:
    """The index of the quickest of some launches; a later one must be quicker by 1% to stand before the first."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, taken in zip(runs, seconds, strict=True):
            taken.append(_time(run, event))
    medians = [statistics.median(taken) for taken in seconds]
    best = min(range(len(runs)), key=medians.__getitem__)
    return best if medians[best] < 0.99 * medians[0] else 0


def _time(run: Callable[[], None], event: Event) -> float:
    start, end = event(), event()
    run()  # loads its code, and fills the caches as those after it will find them
    start.record()
    for _ in range(REPEATS):
        run()
    end.record()
    end.synchronize()
    return float(end.elapsed_ms(start))
