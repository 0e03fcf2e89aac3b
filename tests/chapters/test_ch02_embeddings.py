"""Chapter 02: both rungs copy the rows that the tokens name, bit by bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from chapters.ch02_embeddings.stage import EmbeddingOps


@pytest.mark.parametrize("rung", ["one_thread", "one_block"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("tokens, vocab, hidden", [(1, 1, 1), (5, 3, 33), (130, 71, 40), (3, 9, 576)])
def test_embed(bench, rng, shape, tokens, vocab, hidden, dtype, rung):
    table, ids = rng.normal(size=(vocab, hidden)).astype(dtype), rng.integers(0, vocab, tokens)
    out = bench.poisoned(tokens, hidden, dtype=dtype)
    ops = EmbeddingOps(bench.device, shape, dtype)
    assert ops.embed(bench.ints(ids), bench.put(table, dtype), out, rung=rung) is out
    np.testing.assert_array_equal(bench.get(out), np.stack([table[i] for i in ids]).astype(np.float32))


def test_a_lesson_gets_a_new_array(bench, rng, shape):
    table = rng.normal(size=(4, 6)).astype(np.float32)
    out = EmbeddingOps(bench.device, shape, np.float32).embed(bench.ints([3, 0]), bench.put(table))
    np.testing.assert_array_equal(bench.get(out), table[[3, 0]])
