"""Chapter 06: causal, grouped, from any offset, without overflow and without NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from chapters.ch06_attention.stage import SOURCE, AttentionOps


def formula(q, k, v, head_dim, offset=0):
    """One query and head at a time, in float64, over the visible keys only: no mask is needed."""
    q, k, v = (x.astype(np.float64).reshape(len(x), -1, head_dim) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    out = np.zeros(q.shape)
    for i, h in np.ndindex(*q.shape[:2]):
        seen = slice(0, offset + i + 1)
        scores = k[seen, h // group] @ q[i, h] / np.sqrt(head_dim)
        weights = np.exp(scores - scores.max())
        out[i, h] = weights @ v[seen, h // group] / weights.sum()
    return out.reshape(len(q), -1)


@pytest.fixture
def ops(bench, shape):
    return AttentionOps(bench.device, shape, np.float32)


def draw(rng, queries, keys, heads, kv_heads, head_dim, scale=1.0):
    q = rng.normal(size=(queries, heads * head_dim)) * scale
    return [x.astype(np.float32) for x in (q, *rng.normal(size=(2, keys, kv_heads * head_dim)))]


@pytest.mark.parametrize("length", [1, 2, 33, 63, 64, 65, 130])
def test_a_whole_prompt(bench, rng, ops, assert_close, length):
    q, k, v = draw(rng, length, length, 6, 2, 16)
    out = bench.poisoned(*q.shape)
    assert ops.attend(bench.put(q), bench.put(k), bench.put(v), out) is out
    assert_close(bench.get(out), formula(q, k, v, 16), rtol=1e-5)


@pytest.mark.parametrize(
    "heads, kv_heads, head_dim", [(1, 1, 16), (4, 4, 16), (6, 1, 16), (9, 3, 64), (2, 1, 128), (3, 3, 72)]
)
def test_heads(bench, rng, shape, assert_close, heads, kv_heads, head_dim):
    shape.head_dim, shape.num_attention_heads = head_dim, heads
    q, k, v = draw(rng, 5, 5, heads, kv_heads, head_dim)
    out = AttentionOps(bench.device, shape, np.float32).attend(bench.put(q), bench.put(k), bench.put(v))
    assert_close(bench.get(out), formula(q, k, v, head_dim), rtol=1e-5)


@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 129), (3, 40), (66, 200)])
def test_the_last_queries_of_a_longer_text(bench, rng, ops, assert_close, queries, keys):
    q, k, v = draw(rng, queries, keys, 6, 2, 16)
    out = ops.attend(bench.put(q), bench.put(k), bench.put(v), bench.poisoned(*q.shape), offset=keys - queries)
    assert_close(bench.get(out), formula(q, k, v, 16, keys - queries), rtol=1e-5)


def test_columns_of_a_qkv_product(bench, rng, ops, assert_close):
    qkv = rng.normal(size=(20, 6 * 16 + 2 * 32)).astype(np.float32)
    array = bench.put(qkv)
    out = ops.attend(array[:, :96], array[:, 96:128], array[:, 128:], bench.poisoned(20, 96))
    assert_close(bench.get(out), formula(qkv[:, :96], qkv[:, 96:128], qkv[:, 128:], 16), rtol=1e-5)


def test_large_scores_do_not_overflow(bench, rng, ops, assert_close):
    q, k, v = draw(rng, 20, 20, 6, 2, 16, scale=1e3)  # scores of several thousand; exp ends at 88
    out = ops.attend(bench.put(q), bench.put(k), bench.put(v), bench.poisoned(*q.shape))
    assert_close(bench.get(out), formula(q, k, v, 16), rtol=1e-3)


def test_keys_of_the_future_do_not_count(bench, rng, ops):
    q, k, v = draw(rng, 9, 9, 6, 2, 16)
    before = bench.get(ops.attend(bench.put(q), bench.put(k), bench.put(v)))
    k[5:], v[5:] = 1e4, -1e4
    after = bench.get(ops.attend(bench.put(q), bench.put(k), bench.put(v)))
    np.testing.assert_array_equal(after[:5], before[:5])
    assert (after[5:] != before[5:]).any(axis=1).all()


def test_no_keys_give_zeros(bench, rng, ops):
    q, k, v = draw(rng, 3, 4, 6, 2, 16)
    out = ops.attend(bench.put(q), bench.put(k)[:0], bench.put(v)[:0], bench.poisoned(*q.shape))
    np.testing.assert_array_equal(bench.get(out), 0)


def test_a_row_that_is_masked_altogether_gives_zeros(bench, rng, ops):
    q, k, v = draw(rng, 2, 4, 6, 2, 16)
    out = bench.get(ops.attend(bench.put(q), bench.put(k), bench.put(v), bench.poisoned(*q.shape), offset=-1))
    np.testing.assert_array_equal(out[0], 0)
    np.testing.assert_allclose(out[1].reshape(6, 16), v[:1].reshape(2, 16).repeat(3, axis=0), rtol=1e-6)


def test_softmax_rows_sum_to_one(bench, rng, ops):
    scores = bench.put(rng.normal(size=(5, 300)) * 50)
    ops.launch(SOURCE, "softmax_rows", (5,), (128,), scores, 300)
    np.testing.assert_allclose(bench.get(scores).sum(axis=1), 1, rtol=1e-5)


def test_a_prompt_of_2048_tokens(bench, rng, shape, assert_close):
    shape.num_attention_heads = shape.num_key_value_heads = 1
    ops = AttentionOps(bench.device, shape, np.float32)
    ops.reserve(2048, 1, 2048)
    q, k, v = draw(rng, 2048, 2048, 1, 1, 16)
    out, q_array, k_array, v_array = bench.poisoned(*q.shape), bench.put(q), bench.put(k), bench.put(v)
    with bench.device.no_allocation():
        ops.attend(q_array, k_array, v_array, out)
    last = slice(2040, 2048)
    assert_close(bench.get(out)[last], formula(q[last], k, v, 16, 2040), rtol=1e-5)
    assert_close(bench.get(out)[:70], formula(q[:70], k[:70], v[:70], 16), rtol=1e-5)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_sixteen_bits(bench, rng, shape, assert_close, dtype):
    q, k, v = (x.astype(dtype) for x in draw(rng, 33, 33, 6, 2, 16))
    out = bench.poisoned(*q.shape, dtype=dtype)
    AttentionOps(bench.device, shape, dtype).attend(bench.put(q, dtype), bench.put(k, dtype), bench.put(v, dtype), out)
    assert_close(bench.get(out), formula(q, k, v, 16), dtype)
