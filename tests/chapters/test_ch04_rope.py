"""Chapter 04: a rotation of (i, i + D/2) is a product of complex numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from chapters.ch04_rope.stage import RopeOps
from tiny_vllm.errors import UserError

POSITIONS = [0, 1, 511, 3, 3]


def rotated(x, positions, frequencies):
    """x (T, heads * D) in complex128."""
    heads = x.astype(np.float64).reshape(len(x), -1, 2 * len(frequencies))
    z = heads[..., : len(frequencies)] + 1j * heads[..., len(frequencies) :]
    z = z * np.exp(1j * np.outer(positions, frequencies))[:, None, :]
    return np.concatenate([z.real, z.imag], axis=-1).reshape(x.shape)


def make_table(frequencies):
    angles = np.outer(np.arange(512), frequencies)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("heads, kv_heads, head_dim", [(1, 1, 16), (6, 2, 16), (9, 3, 64), (2, 1, 128)])
def test_columns_of_a_qkv_product(bench, rng, shape, assert_close, heads, kv_heads, head_dim, dtype):
    q_columns, kv_columns = heads * head_dim, kv_heads * head_dim
    qkv = rng.normal(size=(len(POSITIONS), q_columns + 2 * kv_columns)).astype(dtype)
    frequencies = rng.uniform(1e-3, 1, head_dim // 2)
    array = bench.put(qkv, dtype)
    q, k = array[:, :q_columns], array[:, q_columns : q_columns + kv_columns]
    RopeOps(bench.device, shape, dtype).rope(q, k, bench.ints(POSITIONS), bench.put(make_table(frequencies)))
    got, turned = bench.get(array), q_columns + kv_columns
    assert_close(got[:, :turned], rotated(qkv[:, :turned], POSITIONS, frequencies), dtype)
    np.testing.assert_array_equal(got[:, turned:], qkv[:, turned:].astype(np.float32))  # values do not turn


def test_position_zero_turns_nothing(bench, rng, shape):
    x = rng.normal(size=(2, 32)).astype(np.float32)
    q, k = bench.put(x), bench.put(x)
    RopeOps(bench.device, shape, np.float32).rope(q, k, bench.ints([0, 0]), bench.put(make_table(np.ones(8))))
    np.testing.assert_array_equal(bench.get(q), x)
    np.testing.assert_array_equal(bench.get(k), x)


def test_wrong_shapes_are_named(bench, shape):
    q, k, table = bench.put(np.ones((2, 32))), bench.put(np.ones((2, 24))), bench.put(make_table(np.ones(8)))
    ops = RopeOps(bench.device, shape, np.float32)
    with pytest.raises(UserError, match=r"rope: k has shape \(2, 24\)"):
        ops.rope(q, k, bench.ints([0, 0]), table)
    with pytest.raises(UserError, match=r"rope: positions has shape \(1,\)"):
        ops.rope(q, q, bench.ints([0]), table)
