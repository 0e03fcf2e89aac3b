"""Steps of many requests over fixed buffers: the plan in, the logits out, chunks and pages in between."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.conftest import DATA
from tests.engine.engine_load import checkpoint, oracle
from tests.engine.test_llm_engine import B, tokens
from tiny_vllm import LLM, SamplingParams
from tiny_vllm.engine.decode_graphs import bucket_sizes
from tiny_vllm.engine.kv_cache import CacheSize
from tiny_vllm.engine.runner import Runner
from tiny_vllm.engine.step_inputs import StepInputs
from tiny_vllm.ops import make_ops
from tiny_vllm.types import IN_FLIGHT, ScheduledRequest, StepPlan

NAME = "tiny-odd"


def make_runner(device: Any, block_size: int = B, budget: int = 300, eager: bool = True, **size: Any) -> Runner:
    config, weights, _ = checkpoint(NAME, device)
    limits = {"max_model_len": 200, "max_num_seqs": 6, "num_gpu_blocks_override": 400 // block_size, **size}
    ops = make_ops("tuned", device, config, np.float32)
    return Runner(device, config, weights, ops, CacheSize(block_size, **limits), budget, eager)


def part(
    name: str, start: int, ids: list[int], blocks: list[int], first_new_block: int = 0, sampled: bool = True
) -> ScheduledRequest:
    return ScheduledRequest(name, 0, start, tuple(ids), sampled, first_new_block, tuple(blocks))


def plan(*parts: ScheduledRequest) -> StepPlan:
    return StepPlan({each.request_id: len(each.token_ids) for each in parts}, parts)


def keys(runner: Runner, blocks: list[int], count: int) -> list[np.ndarray]:
    """Keys and values at positions 0 to count - 1 of a request with these blocks, of each layer."""
    layers = [runner.device.to_host(layer) for layer in runner.cache.layers]
    rows = [layer[blocks].transpose(0, 3, 1, 2, 4) for layer in layers]
    return [row.reshape(-1, *row.shape[2:])[:count] for row in rows]


@pytest.mark.parametrize("size", [1, 8, 16])
@pytest.mark.parametrize("chunk", [1, 7, B, B + 1])
def test_chunks_are_the_whole_prompt(device, chunk, size):
    """Hazards: key length, or slot mapping, wrong at a chunk boundary: all is as in a one-shot prefill."""
    length = 3 * chunk + 1
    prompt = tokens(chunk, length)
    blocks = np.random.default_rng(size).permutation(400 // size)[: -(-length // size)].tolist()
    whole, chunked = make_runner(device, size), make_runner(device, size)
    expected = device.to_host(whole.forward(plan(part("r", 0, prompt, blocks))))[0]
    for start, end in pairwise([*range(0, length, chunk), length]):
        first, last = -(-start // size), -(-end // size)
        logits = chunked.forward(plan(part("r", start, prompt[start:end], blocks[first:last], first, end == length)))
    found = device.to_host(logits)[0]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    np.testing.assert_allclose(found, oracle(NAME).logits(prompt)[-1], atol=1e-3)
    for one, two in zip(keys(whole, blocks, length), keys(chunked, blocks, length), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


def test_rows_of_mixed_prefills(device):
    """Hazard: the LM head's gather for more than one request: each row is a lone run's, chunks without one left out."""
    runner = make_runner(device)
    prompts = [tokens(seed, length) for seed, length in enumerate((1, B, 33, 5))]
    blocks = [[3], [9], [1, 20, 4], [0]]
    parts = [part(str(i), 0, ids, blocks[i], sampled=i != 1) for i, ids in enumerate(prompts)]
    logits = device.to_host(runner.forward(plan(*parts)))
    for row, index in zip(logits, (0, 2, 3), strict=True):
        np.testing.assert_allclose(row, oracle(NAME).logits(prompts[index])[-1], atol=1e-3)
    rows = [0, 1 + 3, 1 + B + 32]  # any row of the step may be asked for afterwards
    for row, ids in zip(device.to_host(runner.logits_of(rows)), (prompts[0], prompts[1][:4], prompts[2]), strict=True):
        np.testing.assert_allclose(row, oracle(NAME).logits(ids)[-1], atol=1e-3)


def test_a_step_of_which_only_last_rows_are_read(device):
    """Chunks and prompts beside one another: the same logits, and nobody may ask for others."""
    prompts, blocks = [tokens(seed, length) for seed, length in enumerate((1, B, 33, 5))], [[3], [9], [1, 20, 4], [0]]
    step = plan(*(part(str(i), 0, ids, blocks[i], sampled=i != 1) for i, ids in enumerate(prompts)))
    whole, few = make_runner(device), make_runner(device)
    expected = device.to_host(whole.forward(step))
    np.testing.assert_allclose(device.to_host(few.forward(step, last_only=True)), expected, atol=1e-4)
    for i, ids in enumerate(prompts):
        for one, two in zip(keys(whole, blocks[i], len(ids)), keys(few, blocks[i], len(ids)), strict=True):
            np.testing.assert_allclose(one, two, atol=1e-4)
    with pytest.raises(AssertionError, match="last_only"):
        few.logits_of([0])


@pytest.mark.parametrize("eager", [False, True])
def test_decode_in_changing_company(device, eager):
    """Requests come, go and change places between steps; each reads its own blocks, with graphs or without."""
    runner = make_runner(device, eager=eager)
    known = {str(i): tokens(i, 3 + 7 * i) for i in range(5)}
    tables = {str(i): [5 * i + j for j in (2, 4, 1, 0, 3)] for i in range(5)}  # 5 blocks each
    runner.forward(plan(*(part(name, 0, ids, tables[name]) for name, ids in known.items())))
    for names in ("01234", "4", "40", "123", "0", "32104", "3", "21", "4", "0123"):
        for name in names:
            known[name].append(tokens(len(known[name]), 1)[0])
        parts = [part(name, len(known[name]) - 1, known[name][-1:], [], 5) for name in names]
        # What was given in an earlier step and not computed yet is computed first
        logits = device.to_host(runner.forward(plan(*parts)))
        assert logits.shape[0] == len(names)
        for name, row in zip(names, logits, strict=True):
            np.testing.assert_allclose(row, oracle(NAME).logits(known[name])[-1], atol=1e-3)
    assert bool(runner.graphs.num_captured) != eager


def test_warming_up_captures_every_size(device):
    """Padded rows alone: nothing is written, and the graphs are those of real steps."""
    runner = make_runner(device, eager=False)
    before = [device.to_host(layer) for layer in runner.cache.layers]
    runner.warm_up()
    assert runner.graphs.num_captured == len(bucket_sizes(6))
    for one, two in zip(before, runner.cache.layers, strict=True):
        np.testing.assert_array_equal(one, device.to_host(two))
    known = [tokens(seed, 1) for seed in range(3)]
    logits = device.to_host(runner.forward(plan(*(part(str(i), 0, ids, [i]) for i, ids in enumerate(known)))))
    for ids, row in zip(known, logits, strict=True):
        np.testing.assert_allclose(row, oracle(NAME).logits(ids)[-1], atol=1e-3)


def test_a_step_that_allocates_is_an_error(device):
    runner = make_runner(device)
    ops = runner.model.ops
    runner.model.ops = ops.replace(rms_norm=lambda x, weight, eps, out: ops.rms_norm(x, weight, eps, out=None))
    with pytest.raises(Exception, match=r"(?i)alloc"):
        runner.forward(plan(part("r", 0, [1, 2, 3], [0])))


# ---- inputs


def host(device: Any, inputs: StepInputs, step: StepPlan, num_rows: int | None = None) -> dict[str, Any]:
    ids, meta = inputs.lay_out(step, num_rows)
    names = ("positions", "slot_mapping", "query_start_loc", "seq_lens", "block_table", "logits_indices")
    found = {name: device.to_host(getattr(meta, name)).tolist() for name in names}
    lengths = {"query_lens": meta.query_lens_host, "seq_lens_host": meta.seq_lens_host}
    return {"tokens": device.to_host(ids).tolist(), **found, **lengths}


def test_inputs_of_a_step(device):
    inputs = StepInputs(device, 20, 4, max_model_len=32, block_size=4)
    host(device, inputs, plan(part("a", 0, [9] * 6, [5, 2]), part("b", 0, [8] * 3, [7])))
    inputs.last_ids[:] = device.asarray(np.array([41, 42, 0, 0], np.int32))
    step = plan(part("b", 3, [IN_FLIGHT], [], 1), part("c", 0, [11, 12], [1], sampled=False), part("a", 6, [13], [], 2))
    found = host(device, inputs, step)
    tables = found.pop("block_table")
    assert [tables[0][:1], tables[1][:1], tables[2][:2]] == [[7], [1], [5, 2]]
    assert found == {
        "tokens": [42, 11, 12, 13],
        "positions": [3, 0, 1, 6],
        "slot_mapping": [7 * 4 + 3, 4, 5, 2 * 4 + 2],
        "query_start_loc": [0, 1, 3, 4],
        "seq_lens": [4, 2, 7],
        "logits_indices": [0, 3],
        "query_lens": [1, 2, 1],
        "seq_lens_host": [4, 2, 7],
    }
    inputs.last_ids[:] = device.asarray(np.array([43, 44, 45, 46], np.int32))
    found = host(device, inputs, plan(part("a", 7, [IN_FLIGHT], [], 2), part("b", 4, [IN_FLIGHT], [6], 1)))
    assert found["tokens"] == [44, 43]  # c drew nothing, so a was the second to draw


def test_padded_rows_are_nowhere(device):
    inputs = StepInputs(device, 20, 4, max_model_len=32, block_size=4)
    found = host(device, inputs, plan(part("a", 0, [9], [5]), part("b", 0, [8], [7])), 4)
    assert (found["tokens"], found["slot_mapping"]) == ([9, 8, 0, 0], [20, 28, -1, -1])
    assert (found["seq_lens"], found["query_start_loc"]) == ([1, 1, 0, 0], [0, 1, 2, 3, 4])
    assert found["logits_indices"] == [0, 1, 2, 3]
    ids, meta = inputs.lay_out(StepPlan({}), 1, 5)
    assert device.to_host(ids).tolist() == device.to_host(meta.positions).tolist() == [0] * 5
    assert device.to_host(meta.slot_mapping).tolist() == [-1] * 5
    assert (meta.query_lens_host, meta.seq_lens_host) == ([5], [0])
    assert device.to_host(meta.query_start_loc).tolist() == [0, 5]
    assert device.to_host(meta.logits_indices).tolist() == [4]


def test_inputs_stay_where_they_are(device):
    inputs = StepInputs(device, 20, 4, max_model_len=32, block_size=4)
    places = set()
    for start in range(3):
        ids, meta = inputs.lay_out(plan(part("a", start, [1], [start], 0)), 2)
        arrays = (ids, meta.positions, meta.slot_mapping, meta.seq_lens, meta.block_table, meta.logits_indices)
        places.add(tuple(_address(array) for array in arrays))
    assert len(places) == 1


def test_views_are_kept_for_steps_of_the_same_numbers(device, monkeypatch):
    monkeypatch.setattr("tiny_vllm.engine.step_inputs.KEPT_VIEWS", 2)
    inputs, seen = StepInputs(device, 20, 4, max_model_len=32, block_size=4), []
    for count in (1, 2, 2, 3, 1):
        ids, meta = inputs.lay_out(plan(part("a", 0, list(range(5, 5 + count)), [count])))
        assert device.to_host(ids).tolist() == list(range(5, 5 + count))
        assert (meta.query_lens_host, meta.seq_lens_host) == ([count], [count])
        assert device.to_host(meta.slot_mapping).tolist() == list(range(4 * count, 5 * count))
        seen.append(ids)
    assert [seen[1] is seen[2], seen[0] is seen[4]] == [True, False]  # the third kind of step let the others go


def _address(array: Any) -> int:
    return array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data


# ---- block tables


def test_more_requests_than_rows(device, rng):
    """Tables are right whoever comes back when, though the device has room for three of the nine."""
    inputs = StepInputs(device, 9, 3, max_model_len=128, block_size=2)
    known: dict[str, list[int]] = {}
    for _ in range(200):
        names = [str(name) for name in rng.permutation(9)[: rng.integers(1, 4)]]
        parts = []
        for name in names:
            if rng.random() < 0.1:
                known.pop(name, None)
                if rng.random() < 0.5:
                    inputs.tables.forget(name)
            old = known.setdefault(name, [])
            new = rng.integers(0, 99, rng.integers(not old, 4)).tolist() if len(old) < 60 else []
            known[name] = old + new
            parts.append(part(name, 2 * len(known[name]) - 1, [1], new, len(old)))
        _, meta = inputs.lay_out(plan(*parts))
        for name, row in zip(names, device.to_host(meta.block_table), strict=True):
            assert row[: len(known[name])].tolist() == known[name] == inputs.tables.table(name)


def test_every_table_anew(device, rng):
    """As much as a step can bring: no request of it was there before, and all tables are full."""
    inputs = StepInputs(device, 2, 2, max_model_len=3000, block_size=1)
    for names in ("ab", "cd", "ab"):
        blocks = {name: rng.integers(0, 1000, 3000).tolist() for name in names}
        _, meta = inputs.lay_out(plan(*(part(name, 2999, [1], blocks[name]) for name in names)))
        assert device.to_host(meta.block_table).tolist() == list(blocks.values())


def test_buckets():
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(7) == [1, 2, 4, 7]
    assert bucket_sizes(8) == [1, 2, 4, 8]
    assert bucket_sizes(30) == [1, 2, 4, 8, 16, 24, 30]
    assert bucket_sizes(256)[-2:] == [248, 256] and len(bucket_sizes(256)) == 3 + 32


def test_a_set_that_is_no_launches_alone_is_never_captured(device):
    """Its capture would fail at each start, with a warning that tells the user nothing to mend."""
    with LLM(DATA / "tiny" / "tiny", device=device.name, ops="reference", max_model_len=64, enforce_eager=False) as llm:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            llm.generate([{"prompt_token_ids": [5, 6]}], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
        assert llm.stats().num_graphs == 0
