"""write_kv: every key and value where its slot says, and nothing anywhere else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cases import DTYPES, SETS, Shape, integers, poisoned, random


def expected_cache(k: np.ndarray, v: np.ndarray, shape: tuple[int, ...], slots: list[int]) -> np.ndarray:
    """By the definition of the layout, index by index."""
    _, heads, _, block_size, dim = shape
    cache = np.full(shape, np.nan).astype(k.dtype)
    for row, slot in enumerate(slots):
        for head in range(heads if slot >= 0 else 0):
            columns = slice(head * dim, (head + 1) * dim)
            cache[slot // block_size, head, 0, slot % block_size] = k[row, columns]
            cache[slot // block_size, head, 1, slot % block_size] = v[row, columns]
    return cache


@pytest.mark.parametrize("block_size", [1, 5, 16])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 16), (3, 64), (2, 24)])
def test_slots(kv_heads, head_dim, block_size, make, device, dtype, rng):
    """Slots in no order, the last one, some skipped; k and v columns of one product."""
    ops = make(num_attention_heads=2 * kv_heads, num_key_value_heads=kv_heads, head_dim=head_dim)
    shape, width = (9, kv_heads, 2, block_size, head_dim), kv_heads * head_dim
    slots = [9 * block_size - 1, -1, *rng.permutation(9 * block_size - 1)[:5].tolist(), -1]
    qkv = random(rng, (len(slots), 4 * width), dtype)
    array, kv, where = device.asarray(qkv), poisoned(device, shape, dtype), integers(device, slots)
    with device.no_allocation():
        ops.write_kv(array[:, 2 * width : 3 * width], array[:, 3 * width :], kv, where)
    expected = expected_cache(qkv[:, 2 * width : 3 * width], qkv[:, 3 * width :], shape, slots)
    # as float32: NumPy finds NaN in its own types only
    np.testing.assert_array_equal(device.to_host(kv).astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("name", SETS)
def test_70_000_tokens(name, device, rng):
    ops = SETS[name](device, Shape(num_attention_heads=1, num_key_value_heads=1), np.float32)
    kv, slots = poisoned(device, (4375, 1, 2, 16, 16), np.float32), rng.permutation(70_000)
    k, v = (random(rng, (70_000, 16), DTYPES["float32"]) for _ in range(2))
    ops.write_kv(device.asarray(k), device.asarray(v), kv, integers(device, slots))
    flat = device.to_host(kv).transpose(2, 0, 1, 3, 4).reshape(2, 70_000, 16)  # [keys or values, slot]
    np.testing.assert_array_equal(flat[0, slots], k)
    np.testing.assert_array_equal(flat[1, slots], v)
