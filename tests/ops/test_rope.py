"""rope: in place, on column views, at any position."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cases import DTYPES, SCALES, SETS, Shape, assert_close, integers, random
from tiny_vllm.reference.ops import rope


def angles(head_dim: int, positions: int) -> np.ndarray:
    frequency = 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
    angle = np.arange(positions)[:, None] * frequency
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 16), (3, 3, 24), (9, 3, 64), (2, 1, 128)])
def test_columns_of_one_product(heads, kv_heads, head_dim, scale, make, device, dtype, rng):
    """q and k are columns of qkv; v beside them must stay as it is."""
    ops = make(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim)
    q_end, k_end = heads * head_dim, (heads + kv_heads) * head_dim
    qkv, table = random(rng, (7, k_end + kv_heads * head_dim), dtype, scale), angles(head_dim, 100)
    positions = np.array([0, 1, 2, 99, 50, 50, 3])
    array, where, on_device = device.asarray(qkv.copy()), integers(device, positions), device.asarray(table)
    with device.no_allocation():
        ops.rope(array[:, :q_end], array[:, q_end:k_end], where, on_device)
    got = device.to_host(array)
    assert_close(got[:, :q_end], rope(qkv[:, :q_end], positions, table))
    assert_close(got[:, q_end:k_end], rope(qkv[:, q_end:k_end], positions, table))
    np.testing.assert_array_equal(got[:, k_end:], qkv[:, k_end:])


def test_whole_arrays(make, device, dtype, rng):
    q, k, table = random(rng, (3, 96), dtype), random(rng, (3, 32), dtype), angles(16, 9)
    arrays = device.asarray(q.copy()), device.asarray(k.copy())
    make().rope(*arrays, integers(device, [8, 0, 5]), device.asarray(table))
    for array, x in zip(arrays, (q, k), strict=True):
        assert_close(device.to_host(array), rope(x, np.array([8, 0, 5]), table))


@pytest.mark.parametrize("name", SETS)
def test_70_000_tokens_of_one_prompt(name, device, rng):
    shape = Shape(num_attention_heads=1, num_key_value_heads=1, head_dim=16)
    ops = SETS[name](device, shape, np.float32)
    x, table = random(rng, (70_000, 48), DTYPES["float32"]), angles(16, 70_000)
    array = device.asarray(x.copy())
    ops.rope(array[:, :16], array[:, 16:32], integers(device, np.arange(70_000)), device.asarray(table))
    assert_close(device.to_host(array)[:, :16], rope(x[:, :16], np.arange(70_000), table))
