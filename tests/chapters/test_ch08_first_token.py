"""Chapter 08: the wanted rows, the best id, and the tokens of the goldens without a cache."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from chapters.ch08_first_token.stage import FirstTokenOps, generate, one_request
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.llama import Llama
from tiny_vllm.models.weights import load_weights


@pytest.fixture
def ops(bench, shape):
    return FirstTokenOps(bench.device, shape, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("rows", [[0], [6, 0, 0, 3]])
def test_take_rows(bench, rng, shape, rows, dtype):
    x = rng.normal(size=(7, 133)).astype(dtype)
    out = bench.poisoned(len(rows), 133, dtype=dtype)
    ops = FirstTokenOps(bench.device, shape, dtype)
    assert ops.take_rows(bench.put(x, dtype), bench.ints(rows), out) is out
    np.testing.assert_array_equal(bench.get(out), x[rows].astype(np.float32))


@pytest.mark.parametrize("vocab_size", [1, 2, 127, 128, 129, 1000])
def test_argmax(bench, rng, ops, vocab_size):
    logits = (rng.normal(size=(5, vocab_size)) * 10 - 30).astype(np.float32)
    out = bench.poisoned(5, dtype=np.int32)
    assert ops.argmax(bench.put(logits), out) is out
    assert bench.get(out).tolist() == [max(range(vocab_size), key=row.__getitem__) for row in logits]


def test_argmax_takes_the_lowest_of_equal_ones(bench, ops):
    logits = np.zeros((4, 700), np.float32)
    logits[0, [5, 133, 300]] = 1  # 5 and 133 belong to one thread, 300 to another
    logits[1, [256, 257]] = 1
    logits[2, [690, 45]] = 1
    assert bench.get(ops.argmax(bench.put(logits))).tolist() == [5, 256, 45, 0]


def test_argmax_of_infinities_and_nan(bench, ops):
    logits = np.full((3, 300), -np.inf, np.float32)
    logits[1, 0], logits[1, 200] = np.nan, -5
    logits[2] = np.nan
    assert bench.get(ops.argmax(bench.put(logits))).tolist() == [0, 200, 0]


@pytest.mark.parametrize("name", ["tiny", "tiny-odd"])
def test_the_tokens_of_the_goldens(device, request, name):
    folder = request.path.parents[1] / "data" / "tiny" / name
    config = ModelConfig.from_folder(folder)
    model = Llama(config, load_weights(folder, config, device, np.float32), FirstTokenOps(device, config, np.float32))
    for golden in json.loads((folder / "golden.json").read_text())["prompts"]:
        count = 32 if len(golden["ids"]) <= 7 else 3  # every token computes the whole text again
        assert list(generate(model, golden["ids"], count)) == golden["tokens"][:count]


def test_a_batch_of_whole_requests(bench, rng, ops):
    q, k, v = (bench.put(rng.normal(size=(8, heads * 16))) for heads in (6, 2, 2))
    meta = one_request(bench.device, 0, 8)
    meta.query_lens_host, meta.seq_lens_host = [3, 1, 4], [3, 0, 4]
    ops.write_kv(k, v, None, meta.slot_mapping)
    out = bench.get(ops.attention(q, None, meta, bench.poisoned(8, 96)))
    np.testing.assert_array_equal(out[:3], bench.get(ops.attend(q[:3], k[:3], v[:3])))
    np.testing.assert_array_equal(out[3], 0)
    np.testing.assert_array_equal(out[4:], bench.get(ops.attend(q[4:], k[4:], v[4:])))


def test_part_of_a_request_is_refused(bench, ops):
    q, k = bench.put(np.ones((1, 96))), bench.put(np.ones((1, 32)))
    meta = one_request(bench.device, 4, 1)
    ops.write_kv(k, k, None, meta.slot_mapping)
    with pytest.raises(UserError, match="has 5 tokens and this step computes 1; chapter 08 has no cache"):
        ops.attention(q, None, meta)
