"""Batch-invariant mode: the logits of a request have the same bits alone, in any batch, in any chunks, preempted.

The logits are those that the engine hands to its sampler, one row for each token of each answer.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engine.engine_load import DATA, MARGIN, POISON, oracle
from tiny_vllm import LLM
from tiny_vllm.cli_engine import add_engine_options, engine_settings
from tiny_vllm.device.source import load_source, scalar_options
from tiny_vllm.engine.engine_args import EngineArgs
from tiny_vllm.engine.llm_engine import EngineStats
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.models.weights import load_weights
from tiny_vllm.ops import make_ops
from tiny_vllm.ops.invariant import InvariantOps
from tiny_vllm.ops.tuned import TunedOps
from tiny_vllm.types import Array, Request, SamplingParams

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
NAMES = ["tiny", "tiny-odd"]  # of the second no width is a multiple of a tile, and the output rows are their own
VOCAB, MAX_TOKENS, LONG, MAX_MODEL_LEN = 509, 4, 24, 120
# Around a block of 16, a tile of 16, 32 and 64 rows; one by one they are 33 requests
LENGTHS = [17, 1, 40, 16, 7, 33, 64, *(1 + 5 * i % 29 for i in range(26))]

Logits = dict[tuple[str, int], np.ndarray]  # (request id, how many tokens it had) -> (V,) float32


class Recorder:
    """A greedy sampler that keeps every row."""

    def __init__(self, device: Any) -> None:
        self.device, self.rows = device, Logits()

    def sample(self, logits: Array, requests: list[Request]) -> list[int]:
        host = self.device.to_host(logits).copy()
        for row, request in zip(host, requests, strict=True):
            key = request.request_id, len(request.output_token_ids)
            # The overlapped loop drops the token in flight of a request that it preempts, and draws it again.
            assert np.array_equal(self.rows.setdefault(key, row), row), f"{key} has other logits the second time"
        return [int(row.argmax()) for row in host]


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(8)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in LENGTHS[:count]]


@cache
def model(name: str, dtype: str, device: Any) -> tuple[Any, ...]:
    config = dataclasses.replace(ModelConfig.from_folder(DATA / name), eos_token_ids=())
    return config, load_weights(DATA / name, config, device, DTYPES[dtype]), Tokenizer.from_folder(DATA / name)


def run(
    device: Any, name: str, dtype: str, count: int, ops: type = InvariantOps, max_tokens: int = MAX_TOKENS, **args: Any
) -> tuple[Logits, EngineStats]:
    """All logits of the first `count` requests, which come at once."""
    config, weights, tokenizer = model(name, dtype, device)
    recorder = Recorder(device)
    settings = {"max_num_seqs": 33, "max_model_len": MAX_MODEL_LEN, "enforce_eager": True, "sampler": recorder, **args}
    operations = ops(device, config, DTYPES[dtype])
    engine = EngineArgs(**settings).make_engine(device, config, weights, operations, tokenizer)
    for layer in engine.check_open().runner.cache.layers:
        layer.fill(POISON)
    params = SamplingParams(0.0, max_tokens, ignore_eos=True)
    for index, prompt in enumerate(prompts(count)):
        engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
    while engine.has_unfinished_requests():
        engine.step()
    stats = engine.stats()
    engine.close()
    assert len(recorder.rows) == count * max_tokens
    return recorder.rows, stats


@cache
def alone(device: Any, name: str, dtype: str, ops: type = InvariantOps) -> Logits:
    """The logits of all 33, one request at a time."""
    return run(device, name, dtype, len(LENGTHS), ops, max_num_seqs=1)[0]


@cache
def alone_at_length(device: Any, name: str, dtype: str) -> Logits:
    """The logits of 7, one request at a time, with longer answers."""
    return run(device, name, dtype, 7, max_tokens=LONG, max_num_seqs=1)[0]


def differing(got: Logits, expected: Logits) -> list[tuple[str, int]]:
    """Which rows differ in any bit."""
    return [key for key, row in got.items() if row.tobytes() != expected[key].tobytes()]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


def test_in_batches(device, name, dtype):
    """Prompts together in one step, then decode steps of 2, 7 and 33 rows."""
    expected = alone(device, name, dtype)
    for count in (2, 7, 33):
        assert differing(run(device, name, dtype, count)[0], expected) == []


@pytest.mark.parametrize("budget", [1, 7, 16, 17])
def test_in_chunks(device, name, dtype, budget):
    """A prompt comes in chunks of the budget, beside the next tokens of others."""
    got, _ = run(device, name, dtype, 7, max_num_batched_tokens=budget)
    assert differing(got, alone(device, name, dtype)) == []


@pytest.mark.parametrize("caching", [False, True])
def test_preempted(device, name, dtype, caching):
    """A decoded token's keys and values are computed again as a part of a prompt."""
    few: dict[str, Any] = {"num_gpu_blocks_override": 8, "max_num_batched_tokens": 50}
    got, stats = run(device, name, dtype, 7, max_tokens=LONG, enable_prefix_caching=caching, **few)
    assert stats.num_preemptions > 0
    assert differing(got, alone_at_length(device, name, dtype)) == []


@pytest.mark.parametrize("overlapped", [False, True])
def test_graphs_with_padded_rows(device, name, dtype, overlapped):
    """7 requests run as a graph of 8 rows, in the plain and in the overlapped loop."""
    args: dict[str, Any] = {"enforce_eager": False, "max_num_seqs": 9, "async_scheduling": overlapped}
    got, stats = run(device, name, dtype, 7, max_tokens=8, **args)
    assert stats.num_graphs > 0
    assert differing(got, alone_at_length(device, name, dtype)) == []


def test_blocks_of_another_size(device, name):
    """Where keys lie in the cache does not matter."""
    for size in (1, 8, 32):
        assert differing(run(device, name, "float32", 7, block_size=size)[0], alone(device, name, "float32")) == []


def test_against_the_oracle(device, name):
    """The same bits every time could be the wrong ones."""
    rows = alone(device, name, "float32")
    for index, prompt in enumerate(prompts(len(LENGTHS))):
        got = np.stack([rows[str(index), n] for n in range(MAX_TOKENS)])
        tokens = prompt + [int(row.argmax()) for row in got]
        expected = oracle(name).logits(tokens[:-1])[len(prompt) - 1 :]
        np.testing.assert_allclose(got, expected, rtol=0, atol=MARGIN)


# ---- what the tests above are for: each of these is right within rounding, and must be noticed


class LibraryProduct(InvariantOps):
    """device.gemm, which is NumPy's BLAS or cuBLAS."""

    linear = TunedOps.linear


class TilesByBatch(InvariantOps):
    """Attention in tiles of 16 keys instead of 512 where a step has few tokens."""

    def _launch(self, name: str, grid: tuple[int, ...], threads: int, *args: Any) -> None:
        if name != "attention" or grid[0] > 4:
            return super()._launch(name, grid, threads, *args)
        code = load_source("attention.cu").replace("#define TILE 512", "#define TILE 16")
        options = (*scalar_options(self.dtype), f"-DHEAD_DIM={self.config.head_dim}")
        self.device.RawModule(code, options=options).get_function(name)(grid, (threads,), args)


class ThreadsByBatch(InvariantOps):
    """Norms and attention in blocks of more threads where a step has few tokens."""

    def rms_norm(self, x: Array, *args: Any, **options: Any) -> Array:
        self._waiting_threads, self._vectors_of_rows = 64 if len(x) <= 4 else 16, False
        return super().rms_norm(x, *args, **options)


@pytest.mark.parametrize("ops", [LibraryProduct, TilesByBatch, ThreadsByBatch])
def test_operations_that_look_at_the_batch_are_noticed(device, ops):
    expected = alone(device, "tiny", "float32", ops)
    got, _ = run(device, "tiny", "float32", 7, ops)
    assert differing(got, expected) != [], "a fault that these tests do not see"
    np.testing.assert_allclose([got[key] for key in got], [expected[key] for key in got], rtol=0, atol=MARGIN)


# ---- the setting


def scores(llm: LLM, count: int, **params: Any) -> list[Any]:
    """Of each request: its tokens, their log-probabilities, the prompt's."""
    asked = [{"prompt_token_ids": prompt} for prompt in prompts(count)]
    each = [SamplingParams(1.0, 8, seed=index, ignore_eos=True, **params) for index in range(count)]
    return [(r.outputs[0].token_ids, r.outputs[0].logprobs, r.prompt_logprobs) for r in llm.generate(asked, each)]


@pytest.mark.parametrize("params", [{"top_p": 0.9}, {"presence_penalty": 0.5, "top_k": 40}])
def test_draws_and_logprobs(device, params):
    """What is drawn from equal logits is equal, and so is every log-probability, of a prompt in chunks too."""
    common = {"device": device.name, "batch_invariant": True, "max_model_len": MAX_MODEL_LEN, "dtype": "bfloat16"}
    common["num_gpu_blocks_override"] = 200
    params = {"logprobs": 3, "prompt_logprobs": 2, **params}
    with LLM(DATA / "tiny-odd", max_num_seqs=1, **common) as llm:
        expected = scores(llm, 7, **params)
    with LLM(DATA / "tiny-odd", max_num_seqs=9, max_num_batched_tokens=17, enforce_eager=False, **common) as llm:
        assert scores(llm, 7, **params) == expected


def test_the_command_line_has_it():
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    assert engine_settings(parser.parse_args(["--batch-invariant"]))["batch_invariant"] is True
    assert engine_settings(parser.parse_args([]))["batch_invariant"] is False


def test_other_operations_are_refused(device):
    """They hold no such promise, whoever wrote them."""
    ops = make_ops("tuned", device, ModelConfig.from_folder(DATA / "tiny"), np.float32)
    for other in ("reference", ops, TunedOps, InvariantOps):
        with pytest.raises(UserError, match=r"batch_invariant=True runs operations of its own, and ops is .*; leave"):
            LLM(DATA / "tiny", ops=other, batch_invariant=True)
    with pytest.raises(UserError, match="batch_invariant is 1; give True or False"):
        LLM(DATA / "tiny", batch_invariant=1)  # type: ignore[arg-type]
