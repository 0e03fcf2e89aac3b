"""Chapter 05: the same product three times, any M, N and K."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from chapters.ch05_gemm.stage import LinearOps
from tiny_vllm.errors import UserError

GEMMS = ["cublas", "tiled", "naive"]
SIZES = [(1, 1, 1), (1, 33, 17), (16, 16, 16), (17, 15, 31), (5, 100, 64), (33, 7, 130)]


@pytest.mark.parametrize("gemm", GEMMS)
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
@pytest.mark.parametrize("M, N, K", SIZES)
def test_linear(bench, rng, shape, assert_close, M, N, K, scale, gemm):
    x, weight = (rng.normal(size=(M, K)) * scale).astype(np.float32), rng.normal(size=(N, K)).astype(np.float32)
    out = bench.poisoned(M, N)
    ops = LinearOps(bench.device, shape, np.float32, gemm)
    assert ops.linear(bench.put(x), bench.put(weight), out) is out
    expected = np.einsum("mk,nk->mn", x.astype(np.float64), weight.astype(np.float64))
    assert_close(bench.get(out), expected, rtol=1e-5)
    ops.linear(bench.put(x), bench.put(weight), out, add=True)
    assert_close(bench.get(out), 2 * expected, rtol=1e-5)


@pytest.mark.parametrize("gemm", GEMMS)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("wide", [False, True])
def test_sixteen_bits_in_and_float_out(bench, rng, shape, assert_close, dtype, wide, gemm):
    x, weight = rng.normal(size=(3, 300)).astype(dtype), rng.normal(size=(19, 300)).astype(dtype)
    out_dtype = np.float32 if wide else dtype
    out = bench.poisoned(3, 19, dtype=out_dtype)
    LinearOps(bench.device, shape, dtype, gemm).linear(bench.put(x, dtype), bench.put(weight, dtype), out)
    assert_close(bench.get(out), x.astype(np.float64) @ weight.astype(np.float64).T, out_dtype)


def test_wrong_arguments_are_named(bench, shape):
    ops, x = LinearOps(bench.device, shape, np.float32, "tiled"), bench.put(np.ones((2, 3)))
    with pytest.raises(UserError, match=r"linear: weight has shape \(5, 4\); wanted \(5, 3\)"):
        ops.linear(x, bench.put(np.ones((5, 4))))
    with pytest.raises(UserError, match="add=True adds to out; give the array"):
        ops.linear(x, bench.put(np.ones((5, 3))), add=True)


def test_an_unknown_product_is_refused(device, shape):
    with pytest.raises(UserError, match="gemm is 'fast'; give one of cublas, tiled, naive"):
        LinearOps(device, shape, np.float32, "fast")
