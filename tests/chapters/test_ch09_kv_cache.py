"""Chapter 09: where keys and values lie, and that a cache changes no token."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from chapters.ch08_first_token.stage import allocate_buffers, one_request
from chapters.ch09_kv_cache.stage import KVCacheOps, allocate_cache, generate
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.llama import Llama
from tiny_vllm.models.weights import load_weights
from tiny_vllm.types import KVCache, StepMeta


@pytest.fixture
def ops(bench, shape):
    return KVCacheOps(bench.device, shape, np.float32)


@pytest.fixture
def make_model(device, request):
    def make(name: str) -> Llama:
        folder = request.path.parents[1] / "data" / "tiny" / name
        config = ModelConfig.from_folder(folder)
        return Llama(config, load_weights(folder, config, device, np.float32), KVCacheOps(device, config, np.float32))

    return make


@pytest.fixture
def goldens(request):
    def read(name: str) -> list[dict]:
        return json.loads((request.path.parents[1] / "data" / "tiny" / name / "golden.json").read_text())["prompts"]

    return read


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_write_kv(bench, rng, shape, block_size, dtype):
    k, v = rng.normal(size=(2, 5, 32)).astype(dtype)
    slots = rng.permutation(7 * block_size)[:5]
    slots[2] = -1
    wide = bench.put(np.concatenate([k, v], axis=1), dtype)
    kv = bench.poisoned(7, 2, 2, block_size, 16, dtype=dtype)
    KVCacheOps(bench.device, shape, dtype).write_kv(wide[:, :32], wide[:, 32:], kv, bench.ints(slots))
    expected = np.full(kv.shape, np.nan, np.float32)
    for token, slot in enumerate(slots):
        if slot >= 0:
            for head in range(2):
                columns = slice(16 * head, 16 * head + 16)
                expected[slot // block_size, head, 0, slot % block_size] = k[token, columns]
                expected[slot // block_size, head, 1, slot % block_size] = v[token, columns]
    np.testing.assert_array_equal(bench.get(kv), expected)


@pytest.mark.parametrize("seq_len", [0, 1, 4, 5, 11])
def test_what_was_written_is_gathered_in_order(bench, rng, ops, seq_len):
    k, v = rng.normal(size=(2, 11, 32)).astype(np.float32)
    blocks = np.array([6, 2, 9])  # of 4 tokens each
    slots = [blocks[i // 4] * 4 + i % 4 for i in range(11)]
    kv = bench.poisoned(10, 2, 2, 4, 16)
    ops.write_kv(bench.put(k), bench.put(v), kv, bench.ints(slots))
    got_k, got_v = ops.gather(kv, bench.ints(blocks), seq_len)
    np.testing.assert_array_equal(bench.get(got_k), k[:seq_len])
    np.testing.assert_array_equal(bench.get(got_v), v[:seq_len])


def test_attention_over_permuted_blocks(bench, rng, ops, assert_close):
    """Four requests: a prompt, a decode step, a chunk, a padded row; all that nobody owns is NaN."""
    query_lens, seq_lens, block_size = [3, 1, 5, 1], [3, 9, 8, 0], 4
    order = rng.permutation(12)
    table = np.zeros((4, 3), np.int32)
    kv = np.full((12, 2, 2, block_size, 16), np.nan, np.float32)
    q, expected, first = rng.normal(size=(10, 96)).astype(np.float32), np.zeros((10, 96)), 0
    for r, (count, length) in enumerate(zip(query_lens, seq_lens, strict=True)):
        table[r] = order[3 * r : 3 * r + 3]
        k, v = rng.normal(size=(2, length, 2, 16)).astype(np.float32)
        for position in range(length):
            kv[table[r, position // block_size], :, 0, position % block_size] = k[position]
            kv[table[r, position // block_size], :, 1, position % block_size] = v[position]
        for i, h in np.ndindex(count if length else 0, 6):
            seen = length - count + i + 1
            scores = k[:seen, h // 3].astype(np.float64) @ q[first + i, 16 * h : 16 * h + 16] / 4
            weights = np.exp(scores - scores.max())
            expected[first + i, 16 * h : 16 * h + 16] = weights @ v[:seen, h // 3] / weights.sum()
        first += count
    meta = make_meta(bench, query_lens, seq_lens, table, block_size)
    out, arrays = bench.poisoned(10, 96), [bench.put(q), bench.put(kv)]
    ops.reserve(10, 4, 12)
    with bench.device.no_allocation():
        assert ops.attention(*arrays, meta, out) is out
    assert_close(bench.get(out), expected, rtol=1e-5)
    np.testing.assert_array_equal(bench.get(out)[9], 0)


def make_meta(bench, query_lens, seq_lens, table, block_size):
    starts = [seq - query for query, seq in zip(query_lens, seq_lens, strict=True)]
    places = [(r, max(starts[r] + i, 0)) for r, count in enumerate(query_lens) for i in range(count)]
    slots = [table[r][p // block_size] * block_size + p % block_size if seq_lens[r] else -1 for r, p in places]
    ends = np.cumsum(query_lens)
    return StepMeta(
        positions=bench.ints([p for _, p in places]),
        slot_mapping=bench.ints(slots),
        query_start_loc=bench.ints([0, *ends]),
        seq_lens=bench.ints(seq_lens),
        block_table=bench.ints(table),
        logits_indices=bench.ints(ends - 1),
        query_lens_host=list(query_lens),
        seq_lens_host=list(seq_lens),
    )


@pytest.mark.parametrize("name", ["tiny", "tiny-odd"])
def test_the_tokens_of_the_goldens(make_model, goldens, name):
    model = make_model(name)
    for golden in goldens(name):
        assert list(generate(model, golden["ids"], 32)) == golden["tokens"]


def test_the_logits_of_the_goldens(bench, make_model, goldens):
    """Right tokens prove little; in float32 the logits agree within 1e-3."""
    model, golden = make_model("tiny-odd"), goldens("tiny-odd")[2]
    count = len(golden["ids"])
    buffers, cache = allocate_buffers(model, count, count), allocate_cache(model, count)
    meta = one_request(bench.device, 0, count)
    logits = model.forward(bench.ints(golden["ids"]), cache, meta, buffers.take(count, 1))
    np.testing.assert_allclose(bench.get(logits)[0], golden["logits"], atol=1e-3)


def test_a_batch_of_mixed_lengths_equals_lone_runs(bench, make_model, goldens):
    """Prompts of 7, 33 and 1 tokens and a padded row in one step, then one token of each; permuted blocks of 8."""
    model = make_model("tiny-odd")
    config, chosen, block_size = model.config, [goldens("tiny-odd")[i] for i in (1, 2, 0)], 8
    table = np.array([[3, 14, 0, 5, 9], [12, 2, 7, 1, 6], [4, 8, 10, 11, 13], [15, 15, 15, 15, 15]])
    lens = [len(golden["ids"]) for golden in chosen]
    shape = (16, config.num_key_value_heads, 2, block_size, config.head_dim)
    cache = KVCache([bench.poisoned(*shape) for _ in range(config.num_hidden_layers)], block_size)
    buffers = allocate_buffers(model, sum(lens) + 1, 40)
    many = type(buffers).allocate(bench.device, config, np.float32, sum(lens) + 1, 4, buffers.rope_table)

    def step(tokens, query_lens, seq_lens):
        meta = make_meta(bench, query_lens, seq_lens, table, block_size)
        ids, views = bench.ints(tokens), many.take(sum(query_lens), 4)
        with bench.device.no_allocation():
            model.forward(ids, cache, meta, views)
        return bench.get(views.logits)

    prompts = [token for golden in chosen for token in golden["ids"]]
    logits = step([*prompts, 0], [*lens, 1], [*lens, 0])
    for row, golden in zip(logits[:3], chosen, strict=True):
        np.testing.assert_allclose(row, golden["logits"], atol=1e-3)
    firsts = [golden["tokens"][0] for golden in chosen]
    logits = step([*firsts, 0], [1, 1, 1, 1], [*(n + 1 for n in lens), 0])
    assert logits[:3].argmax(axis=1).tolist() == [golden["tokens"][1] for golden in chosen]
