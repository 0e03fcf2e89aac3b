"""Blocks that change owners while a step is at work: what each owner has written stays as it was."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.engine.engine_load import check_pool, make_engine, near_ties, oracle
from tests.engine.test_llm_engine import LOOPS, add, greedy, steps_until, tokens
from tests.engine.test_runner import NAME, keys, make_runner, part, plan
from tiny_vllm.engine.llm_engine import LLMEngine
from tiny_vllm.types import SamplingParams

FIRST, SECOND = tokens(2, 17), tokens(4, 33)  # 2 blocks and 3, of a cache of 3
ANSWER = 6


@cache
def lone_keys(device: Any, prompt: tuple[int, ...]) -> list[np.ndarray]:
    """Keys and values of a prompt and its answer, computed alone and at once."""
    ids = [*prompt, *oracle(NAME).greedy(list(prompt), 25)]
    runner, blocks = make_runner(device), list(range(-(-len(ids) // 16)))
    runner.forward(plan(part("alone", 0, ids, blocks)))
    return keys(runner, blocks, len(ids))


def check_keys(engine: LLMEngine, device: Any) -> None:
    """Every position that a running request has computed holds what its lone run has there."""
    parts: Any = engine.check_open()
    for request in parts.scheduler.running.values():
        count = min(request.num_computed_tokens, request.num_tokens)
        found = keys(parts.runner, request.block_ids, count)
        for mine, alone in zip(found, lone_keys(device, tuple(request.prompt_token_ids)), strict=True):
            np.testing.assert_allclose(mine, alone[:count], atol=1e-3)


def run_checked(engine: LLMEngine, device: Any) -> dict[str, list[int]]:
    """Step to the end, with a look at every key after each step; the answers."""
    answers: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        answers |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
        check_pool(engine)
        check_keys(engine, device)
    return answers


@pytest.mark.parametrize("caching", [False, True], ids=["uncached", "cached"])
@pytest.mark.parametrize("overlapped", LOOPS)
@pytest.mark.parametrize("end", ["eos", "length", "stop", "abort"])
def test_the_next_owners_keys_stay_untouched(device, end, overlapped, caching):
    """Hazard: blocks freed while a late step still writes to them.

    The second request gets the blocks of the first one, whose end the overlapped loop learns a step late.
    """
    ids = oracle(NAME).greedy(FIRST, ANSWER)
    assert ids[-1] not in ids[:-1]
    engine = make_engine(
        device,
        NAME,
        eos=(ids[-1],) if end == "eos" else (),
        num_gpu_blocks_override=3,
        max_model_len=48,
        max_num_seqs=2,
        async_scheduling=overlapped,
        enable_prefix_caching=caching,
        enforce_eager=True,
    )
    stop = [engine.tokenizer.decode(ids[2:4])] if end == "stop" else []
    params = SamplingParams(0.0, ANSWER if end == "length" else 20, ignore_eos=end != "eos", stop=stop)
    for turn in range(2):
        add(engine, f"first {turn}", FIRST, params)
        add(engine, f"second {turn}", SECOND, greedy(8))
    if end == "abort":
        for turn in range(2):
            steps_until(engine, f"first {turn}", 3)
            engine.abort_request(f"first {turn}")
            if turn == 0:
                steps_until(engine, "second 0", 8)
    answers = run_checked(engine, device)
    for name, answer in answers.items():
        assert near_ties(NAME, FIRST if name.startswith("first") else SECOND, answer) == 0
        assert len(answer) == 8 if name.startswith("second") else 0 < len(answer) <= ANSWER
    assert "second 1" in answers


@pytest.mark.parametrize("caching", [False, True], ids=["uncached", "cached"])
@pytest.mark.parametrize("overlapped", LOOPS)
def test_the_keys_of_who_takes_a_preempted_ones_blocks(device, overlapped, caching):
    """The step in flight still writes for the request that has just been preempted."""
    engine = make_engine(
        device,
        NAME,
        num_gpu_blocks_override=4,
        max_model_len=64,
        max_num_seqs=3,
        async_scheduling=overlapped,
        enable_prefix_caching=caching,
        enforce_eager=True,
    )
    for name, prompt in (("old", FIRST), ("young", tokens(6, 18)), ("last", SECOND)):
        add(engine, name, prompt, greedy(25 if name != "last" else 9))
    answers = run_checked(engine, device)
    assert engine.stats().num_preemptions
    assert near_ties(NAME, FIRST, answers["old"]) == near_ties(NAME, SECOND, answers["last"]) == 0
