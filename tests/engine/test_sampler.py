"""Choices and log-probabilities, against NumPy and against the distribution that was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from tiny_vllm.engine.sampler import TokenSampler, choose, draw, gumbel, likeliest, logprobs_of
from tiny_vllm.types import Request, SamplingParams


def request(temperature: float, seed: int | None = 0, num_output: int = 0) -> Request:
    return Request("r", [1], SamplingParams(temperature, seed=seed), output_token_ids=[0] * num_output)


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257, 509, 4099])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_greedy_is_the_argmax(device, rng, vocab_size, scale):
    rows = rng.normal(-2 * scale, scale, (3, vocab_size)).astype(np.float32)
    sampler = TokenSampler(device, num_rows=3)
    device.copy_in(sampler.ids, np.full(3, -7, np.int32))
    ids = sampler.sample(device.asarray(rows), [request(0.0)] * 3)
    assert ids == rows.argmax(axis=1).tolist()
    assert all(type(token_id) is int for token_id in ids)


@pytest.mark.parametrize("ties", [(0, 1), (3, 300), (255, 256, 511), (511, 12)])
def test_the_lowest_id_wins_a_tie(device, ties):
    row = np.linspace(-1, 0, 512, dtype=np.float32)
    row[list(ties)] = 2.5
    assert TokenSampler(device).sample(device.asarray(row[None]), [request(0.0)]) == [min(ties)]
    assert choose(row, request(0.0)) == min(ties)


def test_rows_may_differ_in_temperature(device, rng):
    rows = rng.normal(0, 3, (2, 300)).astype(np.float32)
    drawing = request(0.7, seed=5, num_output=4)
    ids = TokenSampler(device, num_rows=2).sample(device.asarray(rows), [request(0.0), drawing])
    assert ids == [int(rows[0].argmax()), draw(rows[1], 0.7, 5, 4)]


def test_a_draw_depends_on_seed_and_index_only(rng):
    row = rng.normal(0, 1, 50).astype(np.float32)
    first = [draw(row, 1.0, 11, index) for index in range(30)]
    assert first == [draw(row.copy(), 1.0, 11, index) for index in reversed(range(30))][::-1]
    assert first != [draw(row, 1.0, 12, index) for index in range(30)]
    assert len(set(first)) > 5  # the index counts


def test_noise_of_an_id_does_not_depend_on_the_vocabulary():
    np.testing.assert_array_equal(gumbel(3, 9, 7), gumbel(3, 9, 4001)[:7])


def test_seeds_may_be_of_any_size():
    seeds = [0, 1, 2**32, 2**64, 2**200]
    assert len({gumbel(seed, 0, 1)[0] for seed in seeds}) == len(seeds)
    assert np.isfinite(gumbel(0, 2**40, 1000)).all()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("varied", ["seed", "index"])
def test_draws_follow_the_softmax(temperature, varied):
    row = np.array([0.3, -1.2, 1.5, 0.0, -30.0], np.float32)
    count = 4000
    ids = [draw(row, temperature, i, 0) if varied == "seed" else draw(row, temperature, 1, i) for i in range(count)]
    weights = np.exp(row.astype(np.float64) / temperature)
    expected = count * weights / weights.sum()
    observed = np.bincount(ids, minlength=5)
    assert (np.abs(observed - expected) <= 5 * np.sqrt(expected) + 1e-3).all(), (observed, expected)


@pytest.mark.parametrize("temperature", [1e-300, 1e-9])
def test_a_tiny_temperature_is_greedy(rng, temperature):
    row = rng.normal(5, 100, 300).astype(np.float32)
    assert {draw(row, temperature, seed, 0) for seed in range(20)} == {int(row.argmax())}


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize("count", [0, 1, 5, 509, 600])
def test_logprobs_are_the_log_softmax(rng, scale, count):
    row = rng.normal(0, scale, 509).astype(np.float32)
    order = np.argsort(-row, kind="stable")
    expected = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
    chosen = int(order[200])
    found = logprobs_of(row, chosen, count, lambda token_id: f"<{token_id}>")
    wanted = order[: min(count, 509)].tolist()
    assert list(found) == wanted + ([] if chosen in wanted else [chosen])
    for token_id, item in found.items():
        assert item.logprob == pytest.approx(expected[token_id], rel=1e-12, abs=1e-12)
        assert item.rank == 1 + order.tolist().index(token_id)
        assert item.decoded_token == f"<{token_id}>"


def test_equal_logits_rank_by_id():
    row = np.array([1, 3, 3, 0, 3], np.float32)
    assert likeliest(row, 2) == [1, 2]
    assert [logprobs_of(row, token_id, 0, str)[token_id].rank for token_id in range(5)] == [4, 1, 2, 5, 3]
