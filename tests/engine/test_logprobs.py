"""Log-probabilities as a caller gets them, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tiny_vllm.engine.logprobs import Logprobs
from tiny_vllm.reference import sampling as reference


@pytest.mark.parametrize("num_rows", [1, 3, 8])
def test_likeliest_tokens_first_then_the_chosen_one(device, rng, num_rows):
    """Rows that are not asked for are empty; more rows than fit go through in turns, as those of a prompt do."""
    logits = rng.normal(0, 2, (7, 509)).astype(np.float32)
    token_ids = rng.integers(0, 509, 7).tolist()
    counts: list[int | None] = [0, 5, None, 20, None, 1, 3]
    found = Logprobs(device, num_rows)(device.asarray(logits), token_ids, counts, lambda token: f"<{token}>")
    for row, token, count, each in zip(logits, token_ids, counts, found, strict=True):
        expected, order = reference.log_softmax(row), reference.order(row).tolist()
        wanted = [] if count is None else order[:count] + ([token] if token not in order[:count] else [])
        assert list(each) == wanted
        for token_id, item in each.items():
            assert item.logprob == pytest.approx(expected[token_id], rel=1e-6, abs=1e-6)
            assert item.rank == 1 + order.index(token_id)
            assert item.decoded_token == f"<{token_id}>"


def test_more_than_the_vocabulary_has(device):
    [found] = Logprobs(device)(device.asarray(np.array([[0, 2, 1]], np.float32)), [0], [20], str)
    assert list(found) == [1, 2, 0]
    assert [item.rank for item in found.values()] == [1, 2, 3]


def test_equal_logits_rank_by_id(device):
    logits = np.tile(np.array([1, 3, 3, 0, 3], np.float32), (5, 1))
    found = Logprobs(device, 5)(device.asarray(logits), [0, 1, 2, 3, 4], [0] * 5, str)
    assert [each[token].rank for token, each in enumerate(found)] == [4, 1, 2, 5, 3]
