"""The sampler: rows of any parameters, distributions against NumPy, and draws that nothing else changes."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tiny_vllm.engine.sampler import TokenSampler
from tiny_vllm.engine.token_history import TokenHistory
from tiny_vllm.reference import sampling as reference
from tiny_vllm.types import Request, SamplingParams

EOS = 0
NUM_DRAWS = 20_000


def request(prompt: Sequence[int] = (1,), output: Sequence[int] = (), **params: Any) -> Request:
    return Request("r", list(prompt), SamplingParams(**{"seed": 0, **params}), output_token_ids=list(output))


def make(device: Any, vocab_size: int, num_rows: int = 1, max_model_len: int = 64) -> TokenSampler:
    return TokenSampler(device, vocab_size, max_model_len, num_rows, (EOS,))


def expected_token(row: np.ndarray, each: Request) -> int:
    """From the definitions, in NumPy."""
    params, index = each.params, len(each.output_token_ids)
    masked = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    masked = masked if index < params.min_tokens else set()
    return reference.draw(
        reference.adjust(row, params, each.prompt_token_ids, each.output_token_ids, masked), params, index
    )


# ---- greedy


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257, 509, 4099])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_greedy_is_the_argmax(device, rng, vocab_size, scale):
    rows = rng.normal(-2 * scale, scale, (3, vocab_size)).astype(np.float32)
    sampler = make(device, vocab_size, num_rows=3)
    device.copy_in(sampler._ids, np.full(3, -7, np.int32))
    ids = sampler.sample(device.asarray(rows), [request(temperature=0.0)] * 3)
    assert ids == rows.argmax(axis=1).tolist()
    assert all(type(token_id) is int for token_id in ids)


@pytest.mark.parametrize("ties", [(0, 1), (3, 300), (255, 256, 511), (511, 12)])
def test_temperature_0_and_top_k_1_take_the_lowest_id_of_a_tie(device, ties):
    """Hazard row: temperature 0 wanted; top_k=1 differs from temperature 0."""
    row = np.linspace(-1, 0, 512, dtype=np.float32)
    row[list(ties)] = 2.5
    array, sampler = device.asarray(row[None]), make(device, 512)
    for params in ({"temperature": 0.0}, {"top_k": 1}, {"top_k": 1, "temperature": 3.0, "top_p": 0.8}, {"top_p": 1e-9}):
        assert sampler.sample(array, [request(**params)]) == [min(ties)], params
    drawn = {sampler.sample(array, [request(seed=seed)])[0] for seed in range(200)}
    assert not drawn <= {min(ties)}


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 9e-6])
def test_a_tiny_temperature_is_greedy(device, rng, temperature):
    row = rng.normal(5, 1e-3, 300).astype(np.float32)
    sampler, array = make(device, 300), device.asarray(row[None])
    ids = {sampler.sample(array, [request(temperature=temperature, seed=seed)])[0] for seed in range(20)}
    assert ids == {int(row.argmax())}


def test_a_huge_temperature_is_uniform(device):
    sampler, array = make(device, 4), device.asarray(np.array([[50, 0, -50, 7]], np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it does not fit into float32
        found = [sampler.sample(array, [request(temperature=1e300, seed=seed)])[0] for seed in range(100)]
    assert np.bincount(found, minlength=4).min() > 5


# ---- distributions

LOGITS = np.array([0.3, -1.2, 1.5, 0.0, 0.0, -30.0, 2.2, -0.7, 1.5], np.float32)


def draws(device: Any, logits: np.ndarray, varied: str = "seed", **params: Any) -> np.ndarray:
    """How often each token comes in NUM_DRAWS draws of different seeds, or of different output tokens."""
    width, counts = 1000, np.zeros(len(logits))
    sampler = make(device, len(logits), num_rows=width, max_model_len=2)
    array = device.asarray(np.tile(logits, (width, 1)))
    shared = SamplingParams(**{"seed": 9, **params})
    for first in range(0, NUM_DRAWS, width):
        numbers = range(first, first + width)
        if varied == "seed":
            requests = [Request("r", [1], dataclasses.replace(shared, seed=number)) for number in numbers]
        else:
            requests = [Request("r", [1], shared, num_in_flight=1 + number) for number in numbers]
        counts += np.bincount(sampler.sample(array, requests), minlength=len(logits))
    return counts


def assert_distribution(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Pearson's chi-square, within six deviations of its mean; nothing comes that cannot."""
    expected = counts.sum() * probabilities
    assert counts[probabilities == 0].sum() == 0
    likely = expected > 5
    assert counts[~likely].sum() <= expected[~likely].sum() + 5
    freedom = likely.sum() - 1
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    assert statistic < freedom + 6 * np.sqrt(2 * max(freedom, 1)), (counts, expected)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("varied", ["seed", "index"])
def test_draws_follow_the_softmax(device, temperature, varied):
    counts = draws(device, LOGITS, varied, temperature=temperature)
    assert_distribution(counts, reference.probabilities(LOGITS, temperature))


@pytest.mark.parametrize(
    "params",
    [{"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 5, "top_p": 0.6, "min_p": 0.05, "temperature": 1.5}],
)
def test_draws_follow_the_filtered_softmax(device, params):
    kept = reference.keep(LOGITS, SamplingParams(**params))
    assert 1 < kept.sum() < len(LOGITS)
    weights = reference.probabilities(LOGITS, params.get("temperature", 1.0)) * kept
    assert_distribution(draws(device, LOGITS, **params), weights / weights.sum())


def test_draws_follow_adjusted_logits(device):
    params: dict[str, Any] = {"repetition_penalty": 1.5, "logit_bias": {5: 30.0, 6: -1.0}, "presence_penalty": 0.5}
    adjusted = reference.adjust(LOGITS, SamplingParams(**params), [1], [])
    assert_distribution(draws(device, LOGITS, **params), reference.probabilities(adjusted))


def test_rare_tokens_come_as_often_as_they_should(device):
    """200 tokens that share one draw in a hundred: noise that is coarse at its upper end would never draw them."""
    logits = np.full(201, np.log(0.01 / 200), np.float32)
    logits[100] = np.log(0.99)
    counts = draws(device, logits)
    assert 140 < counts.sum() - counts[100] < 260
    assert (np.delete(counts, 100) > 0).sum() > 80


# ---- filters as hazards.md has them


def kept(device: Any, probabilities: Sequence[float], **params: Any) -> set[int]:
    """What comes in 200 draws."""
    row = np.log(np.array(probabilities)).astype(np.float32)
    sampler, array = make(device, len(row), num_rows=200), device.asarray(np.tile(row, (200, 1)))
    return set(sampler.sample(array, [request(seed=seed, **params) for seed in range(200)]))


def test_top_p_keeps_the_token_that_crosses_the_threshold(device):
    """Hazard row: top-p drops the token that crosses the threshold."""
    assert kept(device, [0.1, 0.2, 0.3, 0.4], top_p=0.6) == {2, 3}
    assert kept(device, [0.1, 0.2, 0.3, 0.4], top_p=0.75) == {1, 2, 3}


def test_top_p_takes_its_share_of_what_top_k_left(device):
    """Hazard row: every token masked: tiny top_p; top-k first without renormalising; top token alone above top_p."""
    assert kept(device, [0.1, 0.2, 0.3, 0.4], top_p=1e-9) == {3}
    assert kept(device, [0.1, 0.2, 0.3, 0.4], top_k=1, top_p=0.8) == {3}
    assert kept(device, [0.05, 0.9, 0.05], top_p=0.5) == {1}
    # Of 0.4 + 0.3 the first has 0.57, so it is enough; of all tokens it has 0.4, and both would stay
    assert kept(device, [0.1, 0.2, 0.3, 0.4], top_k=2, top_p=0.55) == {3}
    assert kept(device, [0.1, 0.2, 0.3, 0.4], top_p=0.55) == {2, 3}


def test_min_p_comes_before_top_p(device):
    assert kept(device, [0.1, 0.2, 0.3, 0.4], min_p=0.7) == {2, 3}
    assert kept(device, [0.1, 0.2, 0.3, 0.4], min_p=0.7, top_p=0.55) == {3}


def test_of_equal_tokens_the_lowest_ids_stay(device):
    assert kept(device, [0.25] * 4, top_k=2) == {0, 1}
    assert kept(device, [0.25] * 4, top_p=0.6) == {0, 1, 2}
    assert kept(device, [0.25] * 4, min_p=1.0) == {0, 1, 2, 3}


def test_top_k_off_or_larger_than_the_vocabulary_is_plain(device):
    for top_k in (0, -1, 4, 4000):
        assert kept(device, [0.25] * 4, top_k=top_k) == {0, 1, 2, 3}


# ---- masks and biases


def test_min_tokens_masks_what_would_end_the_answer(device):
    row = np.zeros(8, np.float32)
    row[[EOS, 5, 3]] = 9, 8, 7
    array, sampler = device.asarray(row[None]), make(device, 8)
    params: dict[str, Any] = {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": [5]}
    found = [sampler.sample(array, [request(output=[3] * count, **params)])[0] for count in range(4)]
    assert found == [3, 3, EOS, EOS]
    assert sampler.sample(array, [request(ignore_eos=True, **params)]) == [EOS]  # which ends nothing then
    biased = request(logit_bias={5: 50.0}, **params)
    assert sampler.sample(array, [biased]) == [3]


def test_logit_bias(device):
    array, sampler = device.asarray(np.array([[3, 2, 1]], np.float32)), make(device, 3)
    assert sampler.sample(array, [request(temperature=0.0, logit_bias={2: 5.0, 0: -100.0})]) == [2]
    assert sampler.sample(array, [request(temperature=0.0, logit_bias={})]) == [0]


# ---- nothing else changes a draw


def mixed(rng: np.random.Generator, vocab_size: int) -> Request:
    """A request of random parameters in the middle of its answer."""
    choose: Any = rng.choice
    params: dict[str, Any] = {
        "temperature": float(choose([0.0, 0.3, 1.0, 2.5])),
        "seed": int(rng.integers(2**64, dtype=np.uint64)),
        "top_k": int(choose([0, 0, 1, 5, 40, 2000])),
        "top_p": float(choose([1.0, 0.3, 0.9])),
        "min_p": float(choose([0.0, 0.0, 0.05])),
        "min_tokens": int(choose([0, 10])),
    }
    if rng.random() < 0.5:
        params |= {
            "repetition_penalty": float(rng.uniform(0.8, 1.6)),
            "presence_penalty": float(rng.uniform(-1, 1)),
            "frequency_penalty": float(rng.uniform(-1, 1)),
        }
    if rng.random() < 0.3:
        params["logit_bias"] = {int(i): float(rng.uniform(-5, 5)) for i in rng.integers(0, vocab_size, 4)}
    tokens = rng.integers(0, vocab_size, int(rng.integers(1, 30))).tolist()
    num_prompt = int(rng.integers(1, len(tokens) + 1))
    return request(tokens[:num_prompt], tokens[num_prompt:], **params)


@pytest.mark.parametrize("vocab_size", [2, 509, 5003])
def test_a_batch_of_33_draws_what_each_draws_alone(device, rng, vocab_size):
    """Hazard rows: same seed twice differs; result depends on batch composition. And each is NumPy's."""
    count = 33
    batch, alone = make(device, vocab_size, count), make(device, vocab_size)
    for _ in range(4):
        rows = rng.normal(0.3, 3, (count, vocab_size)).astype(np.float32)
        requests = [mixed(rng, vocab_size) for _ in range(count)]
        array = device.asarray(rows)
        found = batch.sample(array, requests)
        assert found == batch.sample(array, requests)
        order = rng.permutation(count)
        shuffled = batch.sample(device.asarray(rows[order]), [requests[i] for i in order])
        assert shuffled == [found[i] for i in order]
        assert found == [alone.sample(array[r : r + 1], [each])[0] for r, each in enumerate(requests)]
        assert found == [expected_token(row, each) for row, each in zip(rows, requests, strict=True)]
        np.testing.assert_array_equal(device.to_host(array), rows)  # logits stay as they are, for log-probabilities


def test_draws_at_the_vocabulary_of_llama_3(device, rng):
    rows = rng.normal(0, 3, (4, 128256)).astype(np.float32)
    requests = [
        request(temperature=0.8),
        request(top_p=0.9, seed=1),
        request(top_k=50, repetition_penalty=1.2, seed=2),
        request(temperature=0.0),
    ]
    found = make(device, 128256, 4).sample(device.asarray(rows), requests)
    assert found == [expected_token(row, each) for row, each in zip(rows, requests, strict=True)]


def test_the_seed_counts_all_its_bits(device):
    sampler, array = make(device, 1000), device.asarray(np.zeros((1, 1000), np.float32))
    seeds = [0, 1, 2**31, 2**32, 2**33, 2**63, 2**64 - 1]
    assert len({sampler.sample(array, [request(seed=seed)])[0] for seed in seeds}) == len(seeds)


def test_a_preempted_request_goes_on_with_the_same_draws(device, rng):
    """Its output so far is all that counts: not what ran in between, not whose row of the history it gets."""
    vocab_size, steps = 300, 12
    rows = rng.normal(0, 1, (steps, vocab_size)).astype(np.float32)

    def answer(interrupted: Sequence[int]) -> list[int]:
        sampler = make(device, vocab_size, num_rows=2)
        mine = request([7, 8], seed=4, repetition_penalty=1.4, frequency_penalty=0.5)
        for step, row in enumerate(rows):
            if step in interrupted:  # two others take both rows of the history
                others = [mixed(rng, vocab_size) for _ in range(2)]
                for other in others:
                    other.params = dataclasses.replace(other.params, presence_penalty=1.0)
                sampler.sample(device.asarray(rows[:2]), others)
            mine.output_token_ids += sampler.sample(device.asarray(row[None]), [mine])
        return mine.output_token_ids

    alone = answer(())
    assert answer((3, 4, 9)) == alone
    output: list[int] = []
    for row in rows:
        output.append(
            expected_token(row, request([7, 8], output, seed=4, repetition_penalty=1.4, frequency_penalty=0.5))
        )
    assert alone == output


@pytest.mark.parametrize("params", [{}, {"frequency_penalty": 1.5, "repetition_penalty": 1.3}, {"min_tokens": 4}])
def test_a_draw_ahead_is_the_draw_of_the_plain_loop(device, rng, params):
    """The overlapped loop: the token before is in flight, and only the device knows it."""
    vocab_size, steps = 12, 10
    rows = rng.normal(0, 0.5, (steps, 2, vocab_size)).astype(np.float32)

    def requests() -> list[Request]:
        return [request([7, 8], seed=4, **params), request([3], seed=5, temperature=0.3, **params)]

    plain, sampler = requests(), make(device, vocab_size, num_rows=2)
    for row in rows:
        for each, token in zip(plain, sampler.sample(device.asarray(row), plain), strict=True):
            each.output_token_ids.append(token)

    ahead, sampler = requests(), make(device, vocab_size, num_rows=2)
    waiting: list[int] = []
    for row in rows:
        for each in ahead:
            each.num_in_flight += 1
        out = device.zeros((2,), np.int32)
        assert sampler.sample_ahead(device.asarray(row), ahead, out)
        for each, token in zip(ahead, waiting):
            each.output_token_ids.append(token)
            each.num_in_flight -= 1
        waiting = device.to_host(out).tolist()
    assert [[*each.output_token_ids, token] for each, token in zip(ahead, waiting)] == [
        each.output_token_ids for each in plain
    ]


def test_no_rows(device):
    assert make(device, 5).sample(device.asarray(np.zeros((0, 5), np.float32)), []) == []


# ---- the token history


def test_the_history_copies_only_what_is_missing(device):
    array, copied = device.zeros((2, 20), np.int32), []

    class Counting:
        def copy_in(self, target: Any, host: np.ndarray) -> None:
            copied.append(host.tolist())
            device.copy_in(target, host)

    counting: Any = Counting()
    history, a, b, c = TokenHistory(counting, array), request([1, 2, 3]), request([4]), request([5, 6], [7])
    rows = history.place([a, b])
    assert sorted(rows) == [0, 1] and copied == [[1, 2, 3]]  # the newest token comes by its ROW, here 4
    a.output_token_ids.append(9)
    assert history.place([b, a]) == rows[::-1] and len(copied) == 1
    assert history.place([c]) == [rows[1]]  # b was used before a
    assert copied[1:] == [[5, 6, 7]]
    a.output_token_ids += [10, 11]  # not in a step in between
    assert history.place([a]) == [rows[0]] and copied[2:] == [[10, 11]]
    assert device.to_host(array)[rows[0], :6].tolist() == [1, 2, 3, 0, 10, 11]  # 9 came by its ROW, which ran nowhere
