"""What the engine says of answers computed side by side: ends, texts, log-probabilities, by the oracle's logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engine.engine_load import check_pool, make_engine, near_ties, oracle
from tests.engine.hash_model import PlainPool
from tests.engine.test_llm_engine import LOOPS, B, add, drain, greedy, run, steps_until, tokens
from tests.ops.running import log_softmax
from tiny_vllm.engine.llm_engine import LLMEngine
from tiny_vllm.engine.scheduler import Scheduler
from tiny_vllm.types import Array, Request, SamplingParams


def crowd(engine: LLMEngine) -> None:
    """Other requests, so that nothing is alone in its batch."""
    for index in range(3):
        add(engine, f"crowd {index}", tokens(90 + index, 5 + 9 * index), greedy(25))


def tight(device: Any, overlapped: bool, **args: Any) -> LLMEngine:
    return make_engine(device, max_model_len=120, num_gpu_blocks_override=9, async_scheduling=overlapped, **args)


@pytest.mark.parametrize("overlapped", LOOPS)
def test_n_answers_from_a_tight_pool(device, overlapped):
    """Hazard: preemption with n > 1: all the answers come, each as if it ran alone with its own seed; no leak."""
    prompt = tokens(1, 2 * B)
    engine = tight(device, overlapped)
    add(engine, "three", prompt, SamplingParams(0.9, 40, n=3, seed=5, ignore_eos=True))
    answers = drain(engine)["three"].outputs
    assert [answer.index for answer in answers] == [0, 1, 2] and engine.stats().num_preemptions
    for answer in answers:
        alone = make_engine(device, max_model_len=120)
        add(alone, "one", prompt, SamplingParams(0.9, 40, seed=5 + answer.index, ignore_eos=True))
        assert drain(alone)["one"].outputs[0].token_ids == answer.token_ids
    assert len({tuple(answer.token_ids) for answer in answers}) == 3
    assert engine.check_open().pool.num_free == 9


@pytest.mark.parametrize("overlapped", LOOPS)
def test_aborting_one_of_n(device, overlapped):
    engine = tight(device, overlapped)
    add(engine, "three", tokens(1, 20), SamplingParams(0.9, 40, n=3, seed=5, ignore_eos=True))
    crowd(engine)
    steps_until(engine, "three", 3)
    engine.abort_request("three")
    assert set(drain(engine)) == {"crowd 0", "crowd 1", "crowd 2"}


@pytest.mark.parametrize("final_only", [False, True])
@pytest.mark.parametrize("overlapped", LOOPS)
def test_a_stop_string_among_others(device, overlapped, final_only):
    """Hazard: leaked part streamed; the end that only the text shows frees its blocks, and nothing comes after it."""
    prompt = tokens(1, 20)
    tokenizer = make_engine(device, max_model_len=40).tokenizer
    ids = oracle("tiny").greedy(prompt, 30)
    whole = tokenizer.decode(ids)
    stop = whole[len(whole) // 2 :][:3]
    engine = tight(device, overlapped)
    crowd(engine)
    engine.add_request(
        "it", {"prompt_token_ids": prompt}, SamplingParams(0.0, 30, ignore_eos=True, stop=stop), final_only=final_only
    )
    texts, last = [], None
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.request_id == "it":
                texts.append(output.outputs[0].text)
                last = output
        check_pool(engine)
    assert last is not None and last.finished
    [answer] = last.outputs
    assert (answer.text, answer.finish_reason, answer.stop_reason) == (whole[: whole.index(stop)], "stop", stop)
    assert answer.token_ids == ids[: len(answer.token_ids)] and len(answer.token_ids) < 30
    assert all(answer.text.startswith(text) for text in texts) and (len(texts) == 1) == final_only


@pytest.mark.parametrize("final_only", [False, True])
@pytest.mark.parametrize("included", [False, True])
def test_a_token_that_ends_the_answer(device, included, final_only):
    prompt = tokens(3, 20)
    ids = oracle("tiny").greedy(prompt, 30)
    stop = next(token for token in ids[4:] if token not in ids[:4])
    engine = make_engine(device, max_model_len=100)
    crowd(engine)
    params = SamplingParams(
        0.0, 30, stop_token_ids=[stop], include_stop_str_in_output=included, skip_special_tokens=False
    )
    engine.add_request("it", {"prompt_token_ids": prompt}, params, final_only=final_only)
    [answer] = drain(engine)["it"].outputs
    expected = ids[: ids.index(stop) + 1]
    assert (answer.token_ids, answer.finish_reason, answer.stop_reason) == (expected, "stop", stop)
    shown = expected if included else expected[:-1]
    assert answer.text == engine.tokenizer.decode(shown, skip_special_tokens=False)


@pytest.mark.parametrize("overlapped", LOOPS)
def test_logprobs_are_the_oracles(device, overlapped):
    """In any company: the log-softmax of the logits at each position, and the id's rank."""
    engine = tight(device, overlapped)
    crowd(engine)
    prompt = tokens(1, 30)
    add(engine, "it", prompt, greedy(20, logprobs=3))
    [answer] = drain(engine)["it"].outputs
    expected = log_softmax(oracle("tiny").logits((prompt + answer.token_ids)[:-1])[len(prompt) - 1 :])
    assert answer.logprobs is not None and len(answer.logprobs) == 20
    for row, token, found in zip(expected, answer.token_ids, answer.logprobs, strict=True):
        assert list(found)[:1] == [token] and len(found) == 3
        for each, item in found.items():
            assert item.logprob == pytest.approx(row[each], abs=2e-3)


@pytest.mark.parametrize("overlapped", LOOPS)
@pytest.mark.parametrize("budget", [7, B, 200])
def test_prompt_logprobs_in_chunks(device, overlapped, budget):
    """Every prompt position, though its blocks are cached, it comes in chunks and it is preempted on the way."""
    prompt = tokens(1, 3 * B + 2)
    engine = tight(device, overlapped, max_num_batched_tokens=budget, max_num_seqs=4)
    run(engine, [prompt], 1)
    crowd(engine)
    add(engine, "it", prompt, greedy(2, prompt_logprobs=2))
    output = drain(engine)["it"]
    expected = log_softmax(oracle("tiny").logits(prompt))
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == len(prompt)
    assert output.prompt_logprobs[0] is None
    for position, found in enumerate(output.prompt_logprobs[1:], 1):
        assert found is not None and prompt[position] in found
        for each, item in found.items():
            assert item.logprob == pytest.approx(expected[position - 1][each], abs=2e-3)
    assert near_ties("tiny", prompt, output.outputs[0].token_ids) == 0


@pytest.mark.parametrize("overlapped", LOOPS)
def test_penalties_know_the_token_in_flight(device, overlapped):
    """Greedy under penalties, in the overlapped loop: the oracle's logits, penalized here."""
    prompt, repetition, presence, frequency = tokens(1, 20), 1.3, 0.5, 0.7
    known = list(prompt)
    for _ in range(25):
        row = oracle("tiny").logits(known)[-1].astype(np.float64)
        seen, counts = list(set(known)), np.bincount(known[20:], minlength=len(row))
        row[seen] = np.where(row[seen] > 0, row[seen] / repetition, row[seen] * repetition)
        row -= frequency * counts + presence * (counts > 0)
        known.append(int(row.argmax()))
    engine = tight(device, overlapped)
    crowd(engine)
    params = {"repetition_penalty": repetition, "presence_penalty": presence, "frequency_penalty": frequency}
    add(engine, "it", prompt, greedy(25, **params))
    assert drain(engine)["it"].outputs[0].token_ids == known[20:]


@pytest.mark.parametrize("overlapped", LOOPS)
@pytest.mark.parametrize("max_tokens", [8, 20])
def test_tokens_are_counted_by_their_ids(device, max_tokens, overlapped):
    """Hazard: the text of a prompt or an answer, encoded again, has another number of tokens."""
    prompt, engine = tokens(2, 17), make_engine(device, max_model_len=17 + 20, async_scheduling=overlapped)

    def encoded_again(text: str) -> list[int]:
        return engine.tokenizer.encode(text, add_special_tokens=False)

    crowd(engine)
    text = engine.tokenizer.decode(prompt)
    engine.add_request("it", {"prompt": text, "prompt_token_ids": prompt}, greedy(max_tokens))
    ended = drain(engine)
    [answer] = ended["it"].outputs
    assert len(encoded_again(text)) != len(prompt) and len(encoded_again(answer.text)) != max_tokens
    assert ended["it"].prompt_token_ids == prompt and answer.token_ids == oracle("tiny").greedy(prompt, max_tokens)
    assert answer.finish_reason == "length"
    stats = engine.stats()
    assert stats.num_generated_tokens == sum(len(output.outputs[0].token_ids) for output in ended.values())
    assert stats.num_prompt_tokens == sum(len(output.prompt_token_ids) for output in ended.values())


# ---- what a student's code stands in for


class HostSampler:
    """A sampler of the plain protocol: it needs every earlier token and gives a list."""

    def sample(self, logits: Array, requests: list[Request]) -> list[int]:
        assert all(request.num_tokens for request in requests)
        return [int(row.argmax()) for row in logits]


def plain_pool(num_blocks: int, block_size: int, enable_prefix_caching: bool) -> PlainPool:
    return PlainPool(num_blocks, block_size)


class PlainScheduler:
    """Only what the protocol has: add, abort, schedule, update."""

    def __init__(self, pool: Any, **limits: Any) -> None:
        self._inner = Scheduler(pool, **limits)
        self.add, self.abort = self._inner.add, self._inner.abort
        self.schedule, self.update = self._inner.schedule, self._inner.update


@pytest.mark.parametrize("overlapped", LOOPS)
@pytest.mark.parametrize(
    "parts",
    [{"sampler": HostSampler()}, {"sampler": HostSampler}, {"block_pool": plain_pool}, {"scheduler": PlainScheduler}],
    ids=lambda parts: next(iter(parts)),
)
def test_a_students_part_stands_in(device, overlapped, parts):
    if device.name != "emulator" and "sampler" in parts:
        pytest.skip("its argmax runs over CuPy rows one by one")
    engine = make_engine(device, max_model_len=100, num_gpu_blocks_override=9, async_scheduling=overlapped, **parts)
    prompts = [tokens(1, 30), tokens(2, 40), tokens(3, 5)]
    for index, prompt in enumerate(prompts):
        add(engine, str(index), prompt, greedy(30))
    stop = engine.tokenizer.decode(oracle("tiny").greedy(tokens(4, 9), 12)[8:])
    add(engine, "stopped", tokens(4, 9), greedy(30, stop=stop))
    assert engine.stats().num_waiting + engine.stats().num_running == 4
    ended: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        ended |= {output.request_id: output for output in engine.step()}
    for index, prompt in enumerate(prompts):
        assert near_ties("tiny", prompt, ended[str(index)].outputs[0].token_ids) == 0
    assert ended["stopped"].outputs[0].stop_reason == stop
    assert engine.check_open().pool.num_free == 9
