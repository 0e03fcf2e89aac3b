"""Steps over fixed buffers: chunks, block boundaries, and the oracle that knows neither."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_vllm.engine.runner import Runner, StepInputs
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.weights import load_weights
from tiny_vllm.ops import make_ops
from tiny_vllm.reference.llama import Oracle
from tiny_vllm.types import Request, SamplingParams, StepPlan

FOLDER = Path(__file__).parents[1] / "data" / "tiny" / "tiny-odd"
CONFIG = ModelConfig.from_folder(FOLDER)


def make_runner(device, max_model_len: int = 80, budget: int = 2048) -> Runner:
    weights = load_weights(FOLDER, CONFIG, device, np.float32)
    ops = make_ops("tuned", device, CONFIG, np.float32)
    return Runner(device, CONFIG, weights, ops, max_model_len, budget)


def request_of(ids: list[int]) -> Request:
    return Request("r", list(ids), SamplingParams(0.0))


def advance(runner: Runner, request: Request, count: int) -> np.ndarray:
    logits = runner.step(request, StepPlan({"r": count}))
    request.num_computed_tokens += count
    return runner.device.to_host(logits)[0].copy()


def prefill(runner: Runner, request: Request, chunk: int) -> np.ndarray:
    while (left := request.num_tokens - request.num_computed_tokens) > 0:
        logits = advance(runner, request, min(left, chunk))
    return logits


@cache
def oracle() -> Oracle:
    return Oracle(FOLDER)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 52])
@pytest.mark.parametrize("chunk", [1, 7, 16, 17, 2048])
def test_chunks_give_the_logits_of_the_whole_prompt(device, rng, length, chunk):
    ids = rng.integers(0, CONFIG.vocab_size, length).tolist()
    runner = make_runner(device, budget=chunk)
    poison(runner)
    logits = prefill(runner, request_of(ids), runner.max_num_batched_tokens)
    np.testing.assert_allclose(logits, oracle().logits(ids)[-1], atol=1e-3)


def test_chunks_leave_the_same_keys_and_values(device, rng):
    ids = rng.integers(0, CONFIG.vocab_size, 51).tolist()
    caches = []
    for chunk in (51, 17, 7, 1):
        runner = make_runner(device)
        prefill(runner, request_of(ids), chunk)
        caches.append([device.to_host(layer) for layer in runner.cache.layers])
    for other in caches[1:]:
        for one, two in zip(caches[0], other, strict=True):
            np.testing.assert_allclose(one, two, atol=1e-4)
    written = np.abs(caches[0][0]).sum(axis=(1, 2, 4)).reshape(-1) > 0  # position by position, in block order
    assert written[:51].all() and not written[51:].any()


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32])
def test_decode_crosses_block_boundaries(device, rng, length):
    ids = rng.integers(0, CONFIG.vocab_size, length).tolist()
    runner, request = make_runner(device), request_of(ids)
    logits = prefill(runner, request, 2048)
    for _ in range(3):
        np.testing.assert_allclose(logits, oracle().logits(request.token_ids)[-1], atol=1e-3)
        request.output_token_ids.append(int(logits.argmax()))
        logits = advance(runner, request, 1)


def test_the_budget_is_at_most_the_length(device):
    assert make_runner(device, max_model_len=20, budget=2048).max_num_batched_tokens == 20
    assert make_runner(device, max_model_len=20, budget=7).buffers.hidden.shape[0] == 7


def test_a_step_that_allocates_is_an_error(device):
    runner = make_runner(device)
    ops = runner.model.ops
    runner.model.ops = ops.replace(rms_norm=lambda x, weight, eps, out: ops.rms_norm(x, weight, eps, out=None))
    with pytest.raises(Exception, match=r"(?i)alloc"):
        prefill(runner, request_of([1, 2, 3]), 2048)


def test_inputs_of_a_step(device):
    inputs = StepInputs(device, num_tokens=6, num_table_blocks=3)
    inputs.lay_out([9] * 6, 0)  # what an earlier step left must not show
    tokens, meta = inputs.lay_out([11, 22, 33], start=15)
    names = ("positions", "slot_mapping", "query_start_loc", "seq_lens", "block_table", "logits_indices")
    found = {name: device.to_host(getattr(meta, name)).tolist() for name in names}
    assert device.to_host(tokens).tolist() == [11, 22, 33]
    assert found == {
        "positions": [15, 16, 17],
        "slot_mapping": [15, 16, 17],
        "query_start_loc": [0, 3],
        "seq_lens": [18],
        "block_table": [[0, 1, 2]],
        "logits_indices": [2],
    }
    assert (meta.query_lens_host, meta.seq_lens_host) == ([3], [18])


def test_inputs_stay_where_they_are(device):
    inputs = StepInputs(device, num_tokens=4, num_table_blocks=1)
    places = [_address(inputs.lay_out([1], start)[0]) for start in range(3)]
    assert len(set(places)) == 1


def _address(array: Any) -> int:
    return array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data


def poison(runner: Runner) -> None:
    """NaN in every activation: what a step reads, it must have written."""
    for name in ("hidden", "normed", "qkv", "attended", "gate_up", "activated", "last", "last_normed", "logits"):
        getattr(runner.buffers, name).fill(np.nan)
