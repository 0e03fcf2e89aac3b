"""What cuBLAS is asked for, with no GPU: a stand-in that takes column-major matrices at their word."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from tiny_vllm.device import cublas
from tiny_vllm.errors import KernelError, LaunchError

CUDA_TYPES = {0: np.float32, 2: np.float16, 14: ml_dtypes.bfloat16}


class Library:
    """libcublas as its manual defines it, over host memory."""

    def __init__(self, status: int = 0) -> None:
        self.calls: list[str] = []
        self.status = status
        self.cublasGemmEx = Gemm(self)

    def __getattr__(self, name: str):
        def call(*args) -> int:
            self.calls.append(name)
            return 0

        return call


class Gemm:
    def __init__(self, library: Library) -> None:
        self.library = library
        self.argtypes: list = []

    def __call__(self, handle, op_a, op_b, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, *how):
        """C (m,n) = alpha * op(A) (m,k) @ op(B) (k,n) + beta * C, columns ld* elements apart."""
        assert how == (68, -1), "CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT"
        assert len(self.argtypes) == 19
        if self.library.status:
            return self.library.status
        left = matrix(a, a_type, lda, (m, k) if op_a == 0 else (k, m)).astype(np.float32)
        right = matrix(b, b_type, ldb, (k, n) if op_b == 0 else (n, k)).astype(np.float32)
        product = (left if op_a == 0 else left.T) @ (right if op_b == 0 else right.T)
        out = matrix(c, c_type, ldc, (m, n))
        one, scale = (ctypes.cast(p, ctypes.POINTER(ctypes.c_float))[0] for p in (alpha, beta))
        out[:] = one * product + (scale * out.astype(np.float32) if scale else 0)
        return 0


def matrix(address: int, cuda_type: int, ld: int, shape: tuple[int, int]) -> np.ndarray:
    """A column-major matrix in memory."""
    assert ld >= max(1, shape[0])
    dtype = np.dtype(CUDA_TYPES[cuda_type])
    size = ((shape[1] - 1) * ld + shape[0]) * dtype.itemsize
    buffer = np.frombuffer((ctypes.c_char * size).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(buffer, shape, (dtype.itemsize, ld * dtype.itemsize), writeable=True)


def on_device(array: np.ndarray) -> SimpleNamespace:
    """As CuPy shows an array: data.ptr is its address."""
    names = ("ndim", "shape", "strides", "dtype", "itemsize")
    return SimpleNamespace(
        data=SimpleNamespace(ptr=array.ctypes.data), **{name: getattr(array, name) for name in names}
    )


@pytest.fixture
def library(monkeypatch) -> Library:
    found = Library()
    monkeypatch.setattr(cublas, "_load", lambda name: found)
    return found


def test_the_workspace_is_set_after_the_stream(library):
    cublas.Cublas(stream=1, workspace=2)
    assert library.calls == ["cublasCreate_v2", "cublasSetStream_v2", "cublasSetWorkspace_v2", "cublasSetMathMode"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 5, 3), (4, 1, 3), (4, 5, 3)])
def test_row_major_views(library, rng, dtype, add, m, n, k):
    """x and out are column views in wider arrays, weight lies whole; nothing beside the view is touched."""
    x, weight = rng.normal(size=(m, k + 4)).astype(dtype), rng.normal(size=(n, k)).astype(dtype)
    for out_dtype in (dtype, np.float32):
        out = rng.normal(size=(m, n + 3)).astype(out_dtype)
        before = out.copy()
        views = [on_device(each) for each in (x[:, 2 : 2 + k], weight, out[:, 1 : 1 + n])]
        cublas.Cublas(stream=1, workspace=2).gemm(views[0], views[1], views[2], add)
        expected = before.astype(np.float32)
        product = x[:, 2 : 2 + k].astype(np.float32) @ weight.astype(np.float32).T
        expected[:, 1 : 1 + n] = product + (expected[:, 1 : 1 + n] if add else 0)
        np.testing.assert_allclose(out.astype(np.float32), expected.astype(out_dtype).astype(np.float32), rtol=1e-2)


def test_no_rows_is_no_call(library):
    library.status = 7
    x, weight, out = (on_device(np.zeros(shape, np.float32)) for shape in ((0, 3), (5, 3), (0, 5)))
    cublas.Cublas(stream=1, workspace=2).gemm(x, weight, out)


def test_a_status_has_a_name(library):
    library.status = 13
    x, weight, out = (on_device(np.zeros(shape, np.float32)) for shape in ((2, 3), (5, 3), (2, 5)))
    with pytest.raises(KernelError, match=r"cublasGemmEx: CUBLAS_STATUS_EXECUTION_FAILED \(x \(2, 3\) float32"):
        cublas.Cublas(stream=1, workspace=2).gemm(x, weight, out)


class Tunable(SimpleNamespace):
    """An array whose first rows are written over before it is tuned."""

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> SimpleNamespace:
        return SimpleNamespace(data=SimpleNamespace(copy_from_device=lambda *source: None), nbytes=0)


def test_one_handle_tunes_all_shapes(library):
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_ms=lambda start: 1.0)
    product = cublas.Cublas(stream=1, workspace=2)
    with product.tuning(lambda: event):
        for columns in (8, 16, 8):
            shapes = (cublas.TUNED_ROWS, 4), (columns, 4), (cublas.TUNED_ROWS, columns)
            arrays = [np.zeros(shape, np.float32) for shape in shapes]  # which hold the memory
            x, weight, out = (Tunable(**vars(on_device(array))) for array in arrays)
            product.gemm(x, weight, out)
    assert library.calls.count("cublasLtCreate") == 1
    assert library.calls.count("cublasLtMatmulAlgoGetHeuristic") == 2


def test_what_does_not_fit(library):
    gemm = cublas.Cublas(stream=1, workspace=2).gemm
    f32, f16 = np.zeros((4, 8), np.float32), np.zeros((4, 8), np.float16)
    out = np.zeros((4, 4), np.float32)
    cases: list[tuple[type[Exception], np.ndarray, np.ndarray, np.ndarray, str]] = [
        (TypeError, f32, f16, out, "wanted one type"),
        (TypeError, f16, f16, out.astype(ml_dtypes.bfloat16), "out of it or float32"),
        (TypeError, f32, f32, out.astype(np.float64), "out is float64"),
        (TypeError, f32[:, ::2], f32[:, :4], out, "rows of x are not contiguous"),
        (TypeError, f32[0], f32, out, "two axes"),
        (LaunchError, f32, np.zeros((4, 9), np.float32), out, r"weight \(4, 9\)"),
        (LaunchError, f32, f32, np.zeros((3, 4), np.float32), r"out \(3, 4\)"),
    ]
    for error, x, weight, into, message in cases:
        with pytest.raises(error, match=message):
            gemm(on_device(x), on_device(weight), on_device(into))
