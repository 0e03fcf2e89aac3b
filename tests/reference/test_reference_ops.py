"""The reference operations against their definitions, in float64 and written another way."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tiny_vllm.reference import ops

SCALES = [1e-3, 1.0, 1e3]


def close(got: np.ndarray, expected: np.ndarray, rtol: float = 2e-6) -> None:
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * (rng.standard_normal(shape) + 0.3)).astype(np.float32)


def test_rms_norm_by_hand():
    """Mean of squares 36 / 4 = 9; a row of zeros stays zeros."""
    x = np.array([[1, -1, 5, 3], [0, 0, 0, 0]], np.float32)
    close(ops.rms_norm(x[:1], np.array([1, 1, 1, 2], np.float32), 0.0), np.array([[1 / 3, -1 / 3, 5 / 3, 2]]))
    assert not ops.rms_norm(x, np.ones(4, np.float32), 1e-5)[1].any()


@pytest.mark.parametrize("scale", SCALES)
def test_rms_norm(scale, rng):
    x, weight = normal(rng, 4, 37, scale=scale), normal(rng, 37)
    roots = [math.sqrt(math.fsum(float(v) ** 2 for v in row) / 37 + 1e-5) for row in x]
    expected = [[float(v) * float(w) / root for v, w in zip(row, weight)] for row, root in zip(x, roots)]
    close(ops.rms_norm(x, weight, 1e-5), np.array(expected))


def test_rope_is_a_product_of_complex_numbers(rng):
    """Elements i and i + D/2 are the parts of one number, multiplied by exp(i * angle)."""
    angle = rng.uniform(-4, 4, (50, 12))
    table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    x, positions = normal(rng, 5, 3 * 24), np.array([0, 49, 7, 7, 1])
    heads = x.astype(np.float64).reshape(5, 3, 24)
    turned = (heads[..., :12] + 1j * heads[..., 12:]) * np.exp(1j * angle[positions])[:, None]
    close(ops.rope(x, positions, table), np.concatenate([turned.real, turned.imag], axis=-1).reshape(5, 72))


def test_rope_scores_depend_on_distance(rng):
    angle = np.arange(100)[:, None] * 100.0 ** (-np.arange(8) / 8)
    table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    q, k = normal(rng, 1, 16), normal(rng, 1, 16)

    def score(i: int, j: int) -> float:
        return float(ops.rope(q, np.array([i]), table)[0] @ ops.rope(k, np.array([j]), table)[0])

    assert math.isclose(score(5, 3), score(90, 88), rel_tol=1e-4)
    assert not math.isclose(score(5, 3), score(5, 4), rel_tol=1e-2)


def test_linear(rng):
    x, weight = normal(rng, 3, 50), normal(rng, 7, 50)
    expected = [[math.fsum(float(a) * float(b) for a, b in zip(row, w)) for w in weight] for row in x]
    close(ops.linear(x, weight), np.array(expected))


@pytest.mark.parametrize("scale", SCALES)
def test_silu_mul(scale, rng):
    """z * sigmoid(z), and sigmoid(z) = (1 + tanh(z / 2)) / 2."""
    x = normal(rng, 4, 22, scale=scale)
    gate, up = x[:, :11].astype(np.float64), x[:, 11:].astype(np.float64)
    close(ops.silu_mul(x), gate * 0.5 * (1 + np.tanh(gate / 2)) * up)


def attention_by_definition(q, kv, starts, lengths, table):
    """One query, one head, one key at a time."""
    _, kv_heads, _, block_size, dim = kv.shape
    heads = q.shape[1] // dim
    out = np.zeros(q.shape)
    for request, length in enumerate(lengths):
        for row in range(starts[request], starts[request + 1]):
            visible = length - (starts[request + 1] - 1 - row) if length else 0
            for head in range(heads if visible else 0):
                query, where = q[row, head * dim : (head + 1) * dim].astype(np.float64), head // (heads // kv_heads)
                places = [(table[request][p // block_size], p % block_size) for p in range(visible)]
                scores = [float(query @ kv[b, where, 0, o].astype(np.float64)) / math.sqrt(dim) for b, o in places]
                weights = [math.exp(s - max(scores)) for s in scores]
                mean = sum(w * kv[b, where, 1, o].astype(np.float64) for w, (b, o) in zip(weights, places))
                out[row, head * dim : (head + 1) * dim] = mean / math.fsum(weights)
    return out


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (3, 3), (4, 1)])
def test_attention(heads, kv_heads, scale, rng):
    """Prefill, a chunk, decode, nothing, a padded row; blocks of 4 in no order, NaN wherever nobody looks."""
    query_lens, lengths, dim = [5, 3, 1, 0, 1], [5, 11, 8, 6, 0], 8
    starts = np.concatenate([[0], np.cumsum(query_lens)])
    kv = np.full((13, kv_heads, 2, 4, dim), np.nan, np.float32)
    table, free = np.full((5, 3), 12), rng.permutation(12).tolist()
    for request, length in enumerate(lengths):
        for p in range(length):
            if p % 4 == 0:
                table[request, p // 4] = free.pop()
            kv[table[request, p // 4], :, 0, p % 4] = normal(rng, kv_heads, dim)
            kv[table[request, p // 4], :, 1, p % 4] = normal(rng, kv_heads, dim, scale=scale)
    q = normal(rng, 10, heads * dim)
    got = ops.attention(q, kv, starts, np.array(lengths), table)
    close(got, attention_by_definition(q, kv, starts, lengths, table))
    assert not got[9].any()


def test_write_kv(rng):
    """Slot 9 is block 2, offset 1 of blocks of 4; slot -1 is nowhere."""
    k, v, kv = normal(rng, 3, 2 * 6), normal(rng, 3, 2 * 6), np.full((3, 2, 2, 4, 6), np.nan, np.float32)
    ops.write_kv(k, v, kv, np.array([9, -1, 0]))
    np.testing.assert_array_equal(kv[2, :, :, 1], np.stack([k[0].reshape(2, 6), v[0].reshape(2, 6)], axis=1))
    np.testing.assert_array_equal(kv[0, 1, 0, 0], k[2, 6:])
    assert np.isfinite(kv).sum() == 2 * 2 * 12


def test_embed_takes_16_bit_tables(rng):
    table = normal(rng, 9, 4).astype(np.float16)
    got = ops.embed(np.array([8, 0, 8]), table)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, table[[8, 0, 8]].astype(np.float32))
