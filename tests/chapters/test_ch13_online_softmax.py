"""Chapter 13: one pass gives what chapter 06's three kernels give, whatever the scores and however they are cut."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from chapters.ch13_online_softmax.stage import OnlineSoftmaxOps
from tests.chapters.test_ch06_attention import draw, formula

RUNGS = ["one_pass", "flash_attention"]


@pytest.fixture
def ops(bench, shape):
    return OnlineSoftmaxOps(bench.device, shape, np.float32)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33, 100])
def test_a_whole_prompt(bench, rng, ops, assert_close, length, rung):
    q, k, v = draw(rng, length, length, 6, 2, 16)
    out = bench.poisoned(*q.shape)
    assert ops.attend(bench.put(q), bench.put(k), bench.put(v), out, rung=rung) is out
    assert_close(bench.get(out), formula(q, k, v, 16), rtol=1e-5)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("heads, kv_heads, head_dim", [(1, 1, 16), (6, 1, 16), (9, 3, 64), (2, 1, 128), (3, 3, 72)])
def test_heads(bench, rng, shape, assert_close, heads, kv_heads, head_dim, rung):
    shape.head_dim, shape.num_attention_heads = head_dim, heads
    q, k, v = draw(rng, 5, 20, heads, kv_heads, head_dim)
    ops, out = OnlineSoftmaxOps(bench.device, shape, np.float32), bench.poisoned(*q.shape)
    ops.attend(bench.put(q), bench.put(k), bench.put(v), out, 15, rung)
    assert_close(bench.get(out), formula(q, k, v, head_dim, 15), rtol=1e-5)


@pytest.mark.parametrize("rung", [None, *RUNGS])
@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 129), (3, 40), (40, 57)])
def test_the_last_queries_of_a_longer_text_as_columns(bench, rng, ops, assert_close, queries, keys, rung):
    qkv = rng.normal(size=(keys, 6 * 16 + 2 * 32)).astype(np.float32)
    array = bench.put(qkv)
    out = bench.poisoned(queries, 96)
    ops.attend(array[keys - queries :, :96], array[:, 96:128], array[:, 128:], out, keys - queries, rung)
    expected = formula(qkv[keys - queries :, :96], qkv[:, 96:128], qkv[:, 128:], 16, keys - queries)
    assert_close(bench.get(out), expected, rtol=1e-5)


@pytest.mark.parametrize("rung", RUNGS)
def test_the_state_of_no_keys(bench, rng, ops, assert_close, rung):
    """A row that sees nothing gives zeros, and fewer keys than threads merge with states of none."""
    q, k, v = draw(rng, 3, 4, 6, 2, 16)
    arrays = [bench.put(x) for x in (q, k, v)]
    out = ops.attend(arrays[0], arrays[1][:0], arrays[2][:0], bench.poisoned(*q.shape), rung=rung)
    np.testing.assert_array_equal(bench.get(out), 0)
    out = bench.get(ops.attend(*arrays, bench.poisoned(*q.shape), -1, rung))
    np.testing.assert_array_equal(out[0], 0)
    assert_close(out[1:], formula(q[1:], k, v, 16), rtol=1e-5)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("sign", [1, -1])
def test_rising_and_falling_scores(bench, ops, assert_close, sign, rung):
    """The maximum moves with every key, or never again after the first; scores far beyond what exp can hold."""
    q, k, v = (np.zeros((60, width), np.float32) for width in (96, 32, 32))
    q[:, ::16], k[:, ::16] = 1, sign * np.linspace(-4000, 8000, 60)[:, None]
    v[:] = np.arange(60)[:, None]
    out = ops.attend(*(bench.put(x) for x in (q, k, v)), bench.poisoned(60, 96), rung=rung)
    assert_close(bench.get(out), formula(q, k, v, 16), rtol=1e-5)


@pytest.mark.parametrize("rung", RUNGS)
def test_keys_of_the_future_and_nan_behind_the_end(bench, rng, ops, rung):
    q, k, v = draw(rng, 9, 9, 6, 2, 16)
    before = bench.get(ops.attend(*(bench.put(x) for x in (q, k, v)), rung=rung))
    more_k, more_v = (bench.put(np.concatenate([x, np.full_like(x, np.nan)])) for x in (k, v))
    same = bench.get(ops.attend(bench.put(q), more_k[:9], more_v[:9], rung=rung))
    np.testing.assert_array_equal(same, before)
    k[5:], v[5:] = 1e4, -1e4
    after = bench.get(ops.attend(*(bench.put(x) for x in (q, k, v)), rung=rung))
    np.testing.assert_array_equal(after[:5], before[:5])
    assert (after[5:] != before[5:]).any(axis=1).all()


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_sixteen_bits(bench, rng, shape, assert_close, dtype, rung):
    q, k, v = (x.astype(dtype) for x in draw(rng, 33, 33, 6, 2, 16))
    out, ops = bench.poisoned(*q.shape, dtype=dtype), OnlineSoftmaxOps(bench.device, shape, dtype)
    ops.attend(bench.put(q, dtype), bench.put(k, dtype), bench.put(v, dtype), out, rung=rung)
    assert_close(bench.get(out), formula(q, k, v, 16), dtype)


def test_no_scratch_grows_with_the_scores(bench, rng, ops):
    """After reserve a long prompt allocates nothing, and chapter 06's scores are not there."""
    ops.reserve(300, 1, 300)
    q, k, v = (bench.put(x) for x in draw(rng, 300, 300, 6, 2, 16))
    out = bench.poisoned(300, 96)
    with bench.device.no_allocation():
        ops.attend(q, k, v, out)
    assert ops.scores.size == 0 and np.isfinite(bench.get(out)).all()
