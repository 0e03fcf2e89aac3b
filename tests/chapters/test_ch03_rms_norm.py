"""Chapter 03: three rungs, the sizes and scales that find a wrong loop, mean or epsilon."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from chapters.ch03_rms_norm.stage import RMSNormOps
from tiny_vllm.errors import UserError

RUNGS = ["one_thread", "tree", "warp"]


def formula(x, weight, eps):
    x = x.astype(np.float64)
    return np.stack([row / np.sqrt(np.square(row).sum() / row.size + eps) for row in x]) * weight


@pytest.fixture
def ops(bench, shape):
    return RMSNormOps(bench.device, shape, np.float32)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
@pytest.mark.parametrize(
    "rows, hidden, threads",
    [(1, 64, 64), (3, 576, 128), (3, 33, 32), (2, 7, 64), (5, 1000, 256), (1, 1, 32), (2, 97, 1024)],
)
def test_rms_norm(bench, rng, ops, assert_close, rows, hidden, threads, scale, rung):
    x = (rng.normal(size=(rows, hidden)) * scale).astype(np.float32)
    weight = rng.uniform(-2, 2, hidden).astype(np.float32)
    out = bench.poisoned(rows, hidden)
    assert ops.rms_norm(bench.put(x), bench.put(weight), 1e-5, out, rung=rung, threads=threads) is out
    for row, expected in zip(bench.get(out), formula(x, weight, 1e-5), strict=True):
        assert_close(row, expected)


@pytest.mark.parametrize("rung", RUNGS)
def test_a_row_of_zeros_stays_zeros(bench, ops, rung):
    x = np.zeros((2, 50), np.float32)
    x[1] = 3
    out = ops.rms_norm(bench.put(x), bench.put(np.ones(50)), 1e-5, bench.poisoned(2, 50), rung=rung)
    np.testing.assert_allclose(bench.get(out), [[0] * 50, [1] * 50], atol=1e-5)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_sixteen_bits_are_summed_in_float(bench, rng, shape, assert_close, dtype, rung):
    x = (rng.normal(size=(3, 700)) * 200).astype(dtype)  # a sum of squares of 2.8e7: float16 ends at 65,504
    weight = rng.uniform(0.5, 2, 700).astype(dtype)
    out = bench.poisoned(3, 700, dtype=dtype)
    RMSNormOps(bench.device, shape, dtype).rms_norm(bench.put(x, dtype), bench.put(weight, dtype), 1e-5, out, rung=rung)
    assert_close(bench.get(out), formula(x, weight.astype(np.float64), 1e-5), dtype)


def test_the_rungs_refuse_what_they_cannot_add(bench, ops):
    x, weight = bench.put(np.ones((1, 8))), bench.put(np.ones(8))
    with pytest.raises(UserError, match=r"threads is 96.*power of two"):
        ops.rms_norm(x, weight, 1e-5, rung="tree", threads=96)
    with pytest.raises(UserError, match=r"threads is 48.*multiple of 32"):
        ops.rms_norm(x, weight, 1e-5, rung="warp", threads=48)
    with pytest.raises(UserError, match="threads is 2048; a block has 1 to 1024"):
        ops.rms_norm(x, weight, 1e-5, threads=2048)
    with pytest.raises(UserError, match=r"rms_norm: weight has shape \(8,\); wanted \(9,\)"):
        ops.rms_norm(bench.put(np.ones((1, 9))), weight, 1e-5)
    with pytest.raises(UserError, match=r"out has shape \(2, 8\); wanted \(1, 8\)"):
        ops.rms_norm(x, weight, 1e-5, bench.poisoned(2, 8))


def test_each_thread_adds_its_own_squares(bench, rng, ops):
    x = rng.normal(size=(3, 97)).astype(np.float32)
    sums = ops.squares_by_thread(bench.put(x), bench.poisoned(3, 64))
    expected = np.zeros((3, 64))
    for column in range(97):
        expected[:, column % 64] += np.float64(x[:, column]) ** 2
    np.testing.assert_allclose(bench.get(sums), expected, rtol=1e-6)
    with pytest.raises(UserError, match=r"squares_by_thread: sums has shape \(2, 64\); wanted \(3, 64\)"):
        ops.squares_by_thread(bench.put(x), bench.poisoned(2, 64))
