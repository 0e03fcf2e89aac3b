"""Chapter 14: blocks in any order, NaN in all that a request does not own, contexts split among CUDA blocks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from chapters.ch14_paged_attention.stage import FreeList, PagedAttentionOps, num_splits
from tests.chapters.test_ch06_attention import formula
from tests.chapters.test_ch09_kv_cache import make_meta
from tiny_vllm.errors import UserError
from tiny_vllm.types import BlockPool


@pytest.fixture
def ops(bench, shape):
    return PagedAttentionOps(bench.device, shape, np.float32)


def check(ops, bench, rng, assert_close, query_lens, seq_lens, block_size, splits=0, dtype=np.float32):
    """The step of these requests against chapter 06's formula for each of them alone."""
    counts = [-(-n // block_size) for n in seq_lens]
    order = rng.permutation(sum(counts) + 2)
    table = np.full((len(counts), max(counts)), order[-1], np.int32)  # padding: a block that nobody owns
    kv = np.full((len(order), 2, 2, block_size, 16), np.nan, np.float32)
    q, expected, row = rng.normal(size=(sum(query_lens), 96)).astype(dtype), [], 0
    for r, (new, length) in enumerate(zip(query_lens, seq_lens, strict=True)):
        table[r, : counts[r]] = order[sum(counts[:r]) : sum(counts[: r + 1])]
        k, v = rng.normal(size=(2, length, 2, 16)).astype(dtype).astype(np.float32)
        for p in range(length):
            kv[table[r, p // block_size], :, 0, p % block_size] = k[p]
            kv[table[r, p // block_size], :, 1, p % block_size] = v[p]
        mine, columns = q[row : row + new], (length, 32)
        alone = mine * 0  # without keys, or without a new token
        if new and length:
            alone = formula(mine, k.reshape(columns), v.reshape(columns), 16, length - new)
        expected.append(alone)
        row += new
    out, arrays = bench.poisoned(len(q), 96, dtype=dtype), [bench.put(q, dtype), bench.put(kv, dtype)]
    meta = make_meta(bench, query_lens, seq_lens, table, block_size)
    ops.reserve(len(q), len(counts), max(*seq_lens, 1) if splits == 0 else 8 * 256)
    ops._reserve_states(len(q) * max(splits, 1))
    with bench.device.no_allocation():
        assert ops.attention(*arrays, meta, out, splits) is out
    assert_close(bench.get(out), np.concatenate(expected), dtype, rtol=1e-5)


@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_a_mixed_step(ops, bench, rng, assert_close, block_size):
    """A prompt, a decode step, a chunk, a padded row, a request with nothing to do."""
    check(ops, bench, rng, assert_close, [3, 1, 5, 1, 0, 1], [3, 9, 40, 0, 7, 33], block_size)


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
def test_splits(ops, bench, rng, assert_close, splits):
    """Also more splits than keys: those without keys weigh nothing."""
    check(ops, bench, rng, assert_close, [1] * 6, [1, 2, 3, 100, 0, 31], 16, splits)


def test_the_splits_of_a_long_context(ops, bench, rng, assert_close):
    assert [num_splits(1, n) for n in (0, 1, 256, 257, 5000)] == [1, 1, 1, 2, 8] and num_splits(2, 5000) == 1
    check(ops, bench, rng, assert_close, [1, 1], [700, 30], 16)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_sixteen_bits(shape, bench, rng, assert_close, dtype):
    ops = PagedAttentionOps(bench.device, shape, dtype)
    check(ops, bench, rng, assert_close, [1, 7, 1], [40, 20, 5], 16, splits=2, dtype=dtype)


def test_a_row_that_nobody_owns(ops, bench, rng):
    meta = make_meta(bench, [1], [3], np.zeros((1, 1), np.int32), 4)
    kv, q = bench.put(rng.normal(size=(1, 2, 2, 4, 16))), bench.put(rng.normal(size=(3, 96)))
    out = bench.get(ops.attention(q, kv, meta, bench.poisoned(3, 96)))
    assert out[0].all()
    np.testing.assert_array_equal(out[1:], 0)


def test_offsets_past_2_to_the_31(shape, bench, rng):
    """The last block of a cache of 2^31 + 2,048 elements, of which the emulator touches a page; one key: its value."""
    if bench.device.name == "cuda" and bench.device.memory_info()[0] < 6 * 2**30:
        pytest.skip("needs 6 GB of free GPU memory")
    blocks = 2**31 // (2 * 2 * 16 * 16) + 2
    size, ops = (blocks, 2, 2, 16, 16), PagedAttentionOps(bench.device, shape, np.float16)
    kv = np.empty(size, np.float16) if bench.device.name == "emulator" else bench.device.empty(size, np.float16)
    k, v = rng.normal(size=(2, 1, 32))
    ops.write_kv(bench.put(k, np.float16), bench.put(v, np.float16), kv, bench.ints([blocks * 16 - 16]))
    meta = make_meta(bench, [1], [1], np.array([[blocks - 1]]), 16)
    out = bench.get(ops.attention(bench.put(rng.normal(size=(1, 96)), np.float16), kv, meta))
    np.testing.assert_array_equal(out.reshape(2, 3, 16), v.astype(np.float16).reshape(2, 1, 16).repeat(3, axis=1))


def test_rising_and_falling_scores(ops, bench, assert_close):
    """Splits whose maxima are hundreds apart."""
    for sign in (1, -1):
        kv = np.zeros((10, 2, 2, 16, 16), np.float32)
        kv[:, :, 0, :, 0] = sign * np.linspace(-400, 800, 160).reshape(10, 1, 16)
        kv[:, :, 1] = np.arange(160).reshape(10, 1, 16, 1)
        q = np.zeros((1, 96), np.float32)
        q[:, ::16] = 1
        meta = make_meta(bench, [1], [160], np.arange(10)[None], 16)
        out = ops.attention(bench.put(q), bench.put(kv), meta, bench.poisoned(1, 96), 4)
        k, v = (kv[:, :, i].transpose(0, 2, 1, 3).reshape(160, 32) for i in (0, 1))
        assert_close(bench.get(out), formula(q, k, v, 16, 159), rtol=1e-5)


def test_a_free_list_gives_each_block_to_one_owner():
    pool: BlockPool = FreeList(10, 16)
    first, second = pool.allocate(4), pool.allocate(6)
    assert sorted(first + second) == list(range(10)) and pool.num_free == 0
    with pytest.raises(UserError, match="1 blocks asked for, 0 of 10 are free"):
        pool.allocate(1)
    pool.free(second)
    assert pool.num_free == 6 and pool.allocate(0) == []
    with pytest.raises(UserError, match="7 blocks asked for, 6 of 10"):
        pool.allocate(7)
    assert pool.num_free == 6  # a refusal takes nothing
    for twice in (second[:1], [first[0], first[0]]):
        with pytest.raises(UserError, match="given back twice"):
            pool.free(twice)
    assert sorted(pool.allocate(6)) == sorted(second)
