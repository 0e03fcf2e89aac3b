"""The sampling kernels, each against NumPy in float64: random numbers, penalties, filters, draws, log-probabilities."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ops.cases import integers, poisoned
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.device.source import load_source
from tiny_vllm.errors import LaunchError
from tiny_vllm.ops.sampling import ROW, LogprobKernel, SamplingKernels
from tiny_vllm.reference import sampling as reference
from tiny_vllm.types import SamplingParams

KERNELS = Path(__file__).parents[2] / "kernels"
VOCABULARIES = (1, 2, 509, 4096, 4099, 49152, 128256)  # the filter treats more than 4,096 in another way
BORDER = 5e-6  # a share closer to top_p or min_p than this may fall to either side in float32


def row_of(params: SamplingParams, vocabulary: int, **fields: Any) -> np.ndarray:
    """A ROW (1,) with these parameters."""
    row = np.zeros(1, ROW)
    row["temperature"], row["top_p"], row["min_p"] = params.temperature, params.top_p, params.min_p
    row["top_k"] = params.top_k if params.top_k > 0 else vocabulary
    row["repetition_penalty"], row["slot"] = params.repetition_penalty, -1
    row["presence_penalty"], row["frequency_penalty"] = params.presence_penalty, params.frequency_penalty
    for name, value in fields.items():
        row[name] = value
    return row


def on_device(device: Any, rows: np.ndarray) -> Any:
    return device.asarray(rows.view(np.int32).reshape(len(rows), -1))


def test_a_row_is_what_the_kernels_read():
    text = (KERNELS / "sampling.cuh").read_text()
    body = re.search(r"struct Row \{[^\n]*\n(.*?)\n\};", text, re.DOTALL)
    assert body
    types = {"float": np.float32, "unsigned": np.uint32, "int": np.int32}
    fields = re.findall(r"^\s*(float|unsigned|int) (\w+);", body[1], re.MULTILINE)
    assert np.dtype([(name, types[type_]) for type_, name in fields]) == ROW
    assert ROW.itemsize == 4 * len(fields)


# ---- random numbers

VECTORS = [  # of the Random123 library (Salmon et al., 2011), philox4x32 with 10 rounds: counter, key, words
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
RANDOM_CODE = """// tests/random.cu: what philox.cuh computes, a thread a counter or a word.
#include "philox.cuh"
extern "C" __global__ void words(const unsigned* counters, unsigned* out, unsigned key_low, unsigned key_high) {
    const unsigned* c = counters + 4 * threadIdx.x;
    const Words found = philox({c[0], c[1], c[2], c[3]}, key_low, key_high);
    for (int j = 0; j < 4; j++) out[4 * threadIdx.x + j] = found.word[j];
}
extern "C" __global__ void noise(const unsigned* words, float* out) {
    out[threadIdx.x] = gumbel(words[threadIdx.x]);
}
"""


@pytest.fixture(scope="module")
def random_kernels(device, tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    (folder / "random.cu").write_text(RANDOM_CODE)
    return device.RawModule(load_source("random.cu", [folder, KERNELS]))


def words_of(text: str) -> np.ndarray:
    return np.array([int(word, 16) for word in text.split()], np.uint32)


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_philox_gives_the_published_words(device, random_kernels, counter, key, words):
    low, high = (int(word) for word in words_of(key))
    out = device.zeros((4,), np.uint32)
    random_kernels.get_function("words")((1,), (1,), (device.asarray(words_of(counter)), out, low, high))
    np.testing.assert_array_equal(device.to_host(out), words_of(words))
    np.testing.assert_array_equal(reference.philox(words_of(counter)[None], (low, high))[0], words_of(words))


def test_philox_on_the_device_is_philox_in_numpy(device, random_kernels, rng):
    counters = rng.integers(0, 2**32, (200, 4), dtype=np.uint32)
    key = tuple(int(word) for word in rng.integers(0, 2**32, 2))
    out = device.zeros((200, 4), np.uint32)
    random_kernels.get_function("words")((1,), (200,), (device.asarray(counters), out, *key))
    np.testing.assert_array_equal(device.to_host(out), reference.philox(counters, (key[0], key[1])))


def test_noise_is_gumbel_to_its_ends(device, random_kernels, rng):
    words = rng.integers(0, 2**32, 1000, dtype=np.uint32)
    words[:6] = 0, 1, 2, 1000, 2**31, 2**32 - 1000
    out = poisoned(device, (1000,), np.float32)
    random_kernels.get_function("noise")((1,), (1000,), (device.asarray(words), out))
    u = (words + 0.5) / 2.0**32
    expected = -np.log(-np.log1p(-u))
    rounding = 2.0**-25 / (1 - u) / -np.log1p(-u)  # u is a float: coarse near 1, where the noise is least
    assert (np.abs(device.to_host(out) - expected) <= 1e-6 + 3e-6 * np.abs(expected) + 2 * rounding).all()
    assert 22.8 < expected[0] < 22.9 and np.abs(device.to_host(out)[0] - expected[0]) < 1e-5  # below LARGEST_NOISE


def test_the_last_words_give_noise_that_loses(device, random_kernels):
    out = poisoned(device, (2,), np.float32)
    random_kernels.get_function("noise")((1,), (2,), (device.asarray(np.array([2**32 - 1, 2**32 - 2], np.uint32)), out))
    assert (device.to_host(out) < -2.5).all()


# ---- filters


def kept_by_kernel(device: Any, logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Which tokens sampling_filter leaves of each row: (R,V) bool."""
    count, vocabulary = logits.shape
    rows = np.concatenate([row_of(params, vocabulary, is_filtered=1)] * count)
    keys, last_ids = device.asarray(np.full(count, 7, np.uint32)), integers(device, [-7] * count)
    array = device.asarray(logits)
    arguments = (array, array, on_device(device, rows), keys, last_ids, vocabulary)
    threads = 8 if device.name == "emulator" else 512
    KernelLibrary(device, np.float32).kernel("sampling_filter.cu", "sampling_filter")((count,), (threads,), arguments)
    order = order_key(logits)
    lowest, last = (device.to_host(each)[:, None] for each in (keys, last_ids))
    return (order > lowest) | ((order == lowest) & (np.arange(vocabulary) <= last))


def order_key(logits: np.ndarray) -> np.ndarray:
    bits = (logits + np.float32(0)).view(np.uint32)
    keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    return np.where(np.isnan(logits), np.uint32(0), keys)


def assert_kept(device: Any, logits: np.ndarray, params: SamplingParams) -> None:
    """The kernel keeps what NumPy keeps, but for tokens at the very border of min_p or top_p."""
    found = kept_by_kernel(device, logits, params)
    for row, mine in zip(logits, found, strict=True):
        expected = reference.keep(row, params)
        if (mine != expected).any():
            near = [
                reference.keep(row, SamplingParams(params.temperature, top_k=params.top_k, top_p=p, min_p=m))
                for p in (max(params.top_p - BORDER, 1e-12), min(params.top_p + BORDER, 1.0))
                for m in (max(params.min_p * (1 - BORDER), 0.0), min(params.min_p * (1 + BORDER), 1.0))
            ]
            fewest, most = np.logical_and.reduce(near), np.logical_or.reduce(near)
            assert (mine >= fewest).all() and (mine <= most).all(), (params, mine.sum(), expected.sum())


FILTERS: dict[str, list[dict[str, Any]]] = {
    "top_k": [{"top_k": k} for k in (1, 2, 7, 50, 508, 5000)],
    "top_p": [{"top_p": p} for p in (1e-9, 0.1, 0.6, 0.9, 0.999)],
    "min_p": [{"min_p": p} for p in (1e-6, 0.02, 0.5, 1.0)],
    "all": [{"top_k": 40, "top_p": 0.8, "min_p": 0.01}, {"top_k": 3000, "top_p": 0.95, "temperature": 3.0}],
}


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("name", FILTERS)
def test_filters_keep_what_numpy_keeps(device, rng, vocabulary, name):
    count = 3 if vocabulary < 10_000 else 1
    scales = (1e-3, 2.0, 1e3) if vocabulary < 10_000 else (2.0,)
    for params in (SamplingParams(**each) for each in FILTERS[name]):
        for scale in scales:
            logits = (scale * (rng.standard_normal((count, vocabulary)) + 0.3)).astype(np.float32)
            assert_kept(device, logits, params)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("vocabulary", [1, 2, 509, 4999])
def test_filters_of_rows_with_ties_and_masks(device, rng, vocabulary, name):
    for params in (SamplingParams(**each) for each in FILTERS[name]):
        logits = rng.integers(-3, 4, (4, vocabulary)).astype(np.float32)
        logits[1] = 0.0
        logits[2, rng.random(vocabulary) < 0.7] = -np.inf
        logits[2:, rng.integers(vocabulary)] = 2.0
        logits[3] *= np.where(rng.random(vocabulary) < 0.5, 0.0, -0.0)  # zeros of both signs are ties
        assert_kept(device, logits, params)


@pytest.mark.parametrize("name", FILTERS)
def test_filters_of_extreme_rows(device, rng, name):
    """One token far above all, far below, everything at once in one bin, and two of the largest floats."""
    for params in (SamplingParams(**each) for each in FILTERS[name]):
        logits = (1e-3 * rng.standard_normal((4, 5001))).astype(np.float32)
        logits[0, 77] = 1e6
        logits[1, 78] = -1e30
        logits[2] = np.linspace(-3e38, 3e38, 5001, dtype=np.float32)[::-1]
        assert_kept(device, logits, params)


@pytest.mark.parametrize("crowd", [4095, 4096, 4097])
def test_filters_of_a_bin_that_just_fits_and_just_not(device, rng, crowd):
    """So many values in one bin, others before it and behind it."""
    logits = (1e-3 * rng.standard_normal((1, 5001))).astype(np.float32)
    logits[0, crowd:] = np.linspace(-100, -50, 5001 - crowd)
    logits[0, crowd : crowd + 3] = 1.0
    logits = rng.permuted(logits, axis=1)
    for top_k in (1, 3, 4, 2000, crowd, crowd + 2, crowd + 3, crowd + 4):
        assert_kept(device, logits, SamplingParams(top_k=top_k))
    assert_kept(device, logits, SamplingParams(top_p=0.9))


@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}, {"top_k": 3, "top_p": 0.5}])
def test_filters_end_on_rows_that_hold_nothing(device, params):
    rows = np.full((3, 5000), np.nan, np.float32)
    rows[1] = -np.inf
    rows[2, 4] = np.inf
    found = kept_by_kernel(device, rows, SamplingParams(**params))
    assert found[1, 0] and found[2, 4]


def test_nan_is_never_kept_before_a_number(device, rng):
    logits = rng.standard_normal((1, 600)).astype(np.float32)
    logits[0, ::3] = np.nan
    numbers = ~np.isnan(logits[0])
    for params in ({"top_k": 20}, {"top_p": 0.5}, {"min_p": 0.1}):
        found = kept_by_kernel(device, logits, SamplingParams(**params))[0]
        np.testing.assert_array_equal(found[numbers], reference.keep(logits[0][numbers], SamplingParams(**params)))
        assert not found[~numbers].any()


# ---- penalties, biases and draws


def make(device: Any, num_rows: int, vocabulary: int, max_model_len: int = 64) -> SamplingKernels:
    return SamplingKernels(device, num_rows, vocabulary, 200, num_rows, max_model_len)


@pytest.mark.parametrize("vocabulary", [2, 509, 4099])
def test_adjusted_logits_are_those_of_numpy(device, rng, vocabulary):
    """Hazard row: penalties: does the prompt count? Repetition: prompt + output; presence, frequency: output only."""
    count, masked = 40, {1}
    kernels = make(device, count, vocabulary)
    logits = rng.normal(0.3, 3, (count, vocabulary)).astype(np.float32)
    history = rng.integers(0, min(vocabulary, 30), (count, 64)).astype(np.int32)
    device.copy_in(kernels.history, history)
    device.copy_in(kernels._adjusted, np.full((count, vocabulary), np.nan, np.float32))
    rows, expected = np.zeros(count, ROW), []
    biases: list[tuple[int, float]] = []
    for r in range(count):
        params = SamplingParams(
            temperature=0.0,
            repetition_penalty=float(rng.uniform(0.5, 2)),
            presence_penalty=float(rng.uniform(-2, 2)),
            frequency_penalty=float(rng.uniform(-2, 2)),
            logit_bias={int(i): float(rng.uniform(-9, 9)) for i in rng.integers(0, vocabulary, 3)},
        )
        num_prompt, num_output = int(rng.integers(1, 30)), int(rng.integers(0, 30))
        mine = {**(params.logit_bias or {}), **dict.fromkeys(masked if r % 2 else (), float("-inf"))}
        fields = {"is_adjusted": 1, "slot": r, "num_prompt": num_prompt, "newest": int(history[r, num_prompt - 1])}
        rows[r] = row_of(params, vocabulary, **fields)[0]
        rows[r]["first_bias"], rows[r]["num_biases"] = len(biases), len(mine)
        rows[r]["num_known"] = rows[r]["num_tokens"] = num_prompt + num_output
        rows[r]["newest"] = history[r, num_prompt + num_output - 1]
        biases += mine.items()
        tokens = history[r, : num_prompt + num_output].tolist()
        expected.append(
            reference.adjust(logits[r], params, tokens[:num_prompt], tokens[num_prompt:], masked if r % 2 else ())
        )
    array, out = device.asarray(logits), integers(device, [-7] * count)
    with device.no_allocation():
        kernels(array, rows, biases, out)
    np.testing.assert_allclose(device.to_host(kernels._adjusted), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(device.to_host(array), logits)  # as they were
    assert not device.to_host(kernels._counts).any()
    np.testing.assert_array_equal(device.to_host(out), np.argmax(device.to_host(kernels._adjusted), axis=1))


def test_the_newest_token_and_those_in_flight_count(device):
    """The host knows 3 tokens, of which the history has 2; the fourth was written by the draw before."""
    vocabulary, kernels = 10, make(device, 1, 10, max_model_len=6)
    device.copy_in(kernels.history, np.array([[1, 2, 9, 4, 9, 9]], np.int32))
    params = SamplingParams(frequency_penalty=2.0)
    fields = {"is_adjusted": 1, "slot": 0, "num_prompt": 1, "num_known": 3, "num_tokens": 4, "newest": 3}
    out = integers(device, [-7])
    kernels(device.asarray(np.zeros((1, 10), np.float32)), row_of(params, vocabulary, **fields), [], out)
    np.testing.assert_array_equal(device.to_host(kernels._adjusted)[0], [0, 0, -2, -2, -2, 0, 0, 0, 0, 0])
    assert device.to_host(kernels.history)[0].tolist() == [1, 2, 3, 4, int(device.to_host(out)[0]), 9]


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 4, 5, 509, 4097, 49152])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_grid_does_not_change_a_draw(device, rng, monkeypatch, vocabulary, temperature):
    count = 3
    logits = rng.normal(0, 2, (count, vocabulary)).astype(np.float32)
    rows = np.concatenate([row_of(SamplingParams(temperature), vocabulary, seed_low=r, index=5) for r in range(count)])
    kernels, array, found = make(device, count, vocabulary), device.asarray(logits), []
    for tokens_per_block, threads in ((4, 1), (64, 4), (4096, 33), (1 << 20, 8)):
        if vocabulary > 1000 * tokens_per_block:
            continue  # too many blocks for a quick test
        monkeypatch.setattr(kernels, "_draw_shape", lambda rows, shape=(tokens_per_block, threads): shape)
        out = integers(device, [-7] * count)
        kernels(array, rows, [], out)
        found.append(device.to_host(out).tolist())
    params = [SamplingParams(temperature, seed=r) for r in range(count)]
    expected = [reference.draw(row, each, 5) for row, each in zip(logits, params)]
    assert found == [expected] * len(found)
    assert not device.to_host(kernels._best).any() and not device.to_host(kernels._num_arrived).any()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_second_choice_of_a_thread_may_win(device, rng, threads, monkeypatch):
    """Few tokens, and several for each thread: then the one whose bound is highest is often not the best."""
    count, vocabulary = 300, 15
    logits = rng.normal(0, 1, (count, vocabulary)).astype(np.float32)
    rows = np.concatenate([row_of(SamplingParams(0.9), vocabulary, seed_low=r, index=r) for r in range(count)])
    kernels, out = make(device, count, vocabulary), integers(device, [-7] * count)
    monkeypatch.setattr(kernels, "_draw_shape", lambda rows: (16, threads))
    kernels(device.asarray(logits), rows, [], out)
    expected = [reference.draw(row, SamplingParams(0.9, seed=r), r) for r, row in enumerate(logits)]
    assert device.to_host(out).tolist() == expected


def test_greedy_draws_of_ties_nan_and_infinity(device):
    rows = np.full((7, 40), -np.inf, np.float32)  # row 0: nothing but -inf
    rows[1, 7] = -1e38
    rows[2] = np.nan
    rows[3] = np.nan
    rows[3, 33] = -np.inf
    rows[4, [3, 20]] = np.nan, 1.0
    rows[5, [9, 30]] = np.inf
    rows[6, [11, 5, 39]] = 0.0, -0.0, 0.0
    out = integers(device, [-7] * 7)
    greedy = np.concatenate([row_of(SamplingParams(0.0), 40)] * 7)
    make(device, 7, 40)(device.asarray(rows), greedy, [], out)
    np.testing.assert_array_equal(device.to_host(out), [0, 7, 0, 33, 20, 9, 5])


# ---- log-probabilities


@pytest.mark.parametrize("vocabulary", [1, 2, 509, 49152])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_logprobs_are_the_log_softmax(device, rng, vocabulary, scale):
    logits = rng.normal(5 * scale, scale, (4, vocabulary)).astype(np.float32)
    logits[2] = np.round(logits[2] / scale) * scale  # ties
    chosen = [int(i) for i in rng.integers(0, vocabulary, 4)]
    numbers = [min(count, vocabulary) for count in (0, 5, 20)] + [-1]
    kernel = LogprobKernel(device, 5, 20)
    device.copy_in(kernel._ranks, np.full(5, -7, np.int32))
    array = device.asarray(logits)
    with device.no_allocation():
        ids, logprobs, ranks = kernel(array, chosen, numbers)
    for r in range(3):
        expected, order = reference.log_softmax(logits[r]), reference.order(logits[r]).tolist()
        wanted = [chosen[r], *order[: numbers[r]]]
        assert ids[r, : len(wanted)].tolist() == wanted
        np.testing.assert_allclose(logprobs[r, : len(wanted)], expected[wanted], rtol=1e-6, atol=2e-6 + 1e-7 * scale)
        assert ranks[r] == 1 + order.index(chosen[r])
    assert ranks[3] == -7  # passed over


def test_logprobs_of_masked_tokens(device):
    logits = np.array([[1.0, -np.inf, 1.0, np.nan]], np.float32)
    ids, logprobs, ranks = LogprobKernel(device, 1, 4)(device.asarray(logits), [1], [4])
    assert ids[0].tolist() == [1, 0, 2, 1, 3] and ranks[0] == 3
    np.testing.assert_allclose(logprobs[0, :4], [-np.inf, np.log(0.5), np.log(0.5), -np.inf], rtol=1e-6)


def test_a_step_may_not_allocate(device):
    """The buffers are there from the start: a capture or a step of the runner forbids any more."""
    kernels, rows = make(device, 2, 100), np.concatenate([row_of(SamplingParams(0.5), 100, is_filtered=1)] * 2)
    array, out = device.asarray(np.zeros((2, 100), np.float32)), integers(device, [0, 0])
    with device.no_allocation():
        kernels(array, rows, [], out)
        with pytest.raises((LaunchError, RuntimeError)):
            device.zeros((3,), np.float32)
