"""The engine over real models: every answer is that of reference/llama.py run alone, whatever runs beside it."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.conftest import TINY
from tests.engine.engine_load import Setting, check_pool, make_engine, near_ties, oracle, run_load
from tiny_vllm.engine.llm_engine import LLMEngine
from tiny_vllm.errors import KernelError, UserError
from tiny_vllm.types import RequestOutput, SamplingParams

VOCAB = 509  # of the smallest tiny checkpoint
B = 16
LOOPS = [pytest.param(False, id="plain"), pytest.param(True, id="overlapped")]


def greedy(max_tokens: int, **params: Any) -> SamplingParams:
    return SamplingParams(0.0, max_tokens, ignore_eos=True, **params)


def tokens(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(count)]


def add(engine: LLMEngine, request_id: str, prompt: list[int], params: SamplingParams) -> None:
    engine.add_request(request_id, {"prompt_token_ids": prompt}, params)


def drain(engine: LLMEngine) -> dict[str, RequestOutput]:
    """Step until nothing is left; the last output of each request, in the order of their ends."""
    ended = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                ended[output.request_id] = output
        check_pool(engine)
    return ended


def run(engine: LLMEngine, prompts: list[list[int]], max_tokens: int, **params: Any) -> list[list[int]]:
    """The answers to prompts that come at once, each compared with the oracle's."""
    for index, prompt in enumerate(prompts):
        add(engine, str(index), prompt, greedy(max_tokens, **params))
    ended = drain(engine)
    answers = [ended[str(index)].outputs[0].token_ids for index in range(len(prompts))]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert near_ties("tiny", prompt, answer) == 0
    return answers


def steps_until(engine: LLMEngine, request_id: str, num_tokens: int) -> None:
    """Step until the request has so many tokens."""
    while True:
        for output in engine.step():
            if output.request_id == request_id and len(output.outputs[0].token_ids) >= num_tokens:
                return


# ---- random load


def assert_alive(seen: Counter[str], names: tuple[str, ...]) -> None:
    print(dict(seen))
    assert all(seen[name] for name in names), f"the draw is too small: {dict(seen)}"
    assert seen["near ties"] <= 1 + seen["tokens"] // 10_000


@pytest.mark.parametrize("name", TINY)
def test_random_load(device, name):
    """Mixed lengths at random steps, random chunks, tight pools, prefix caching, both loops, graphs or none, aborts."""
    seen: Counter[str] = sum((run_load(device, name, seed, 12) for seed in range(10)), Counter())
    assert_alive(seen, ("stop", "length", "preemptions", "hits", "graphs", "aborted"))


@pytest.mark.deep
@pytest.mark.parametrize("name", TINY)
def test_random_load_at_length(device, name):
    """At least 2,000 requests over the eight checkpoints."""
    seen: Counter[str] = sum((run_load(device, name, seed, 20) for seed in range(1000, 1040)), Counter())
    assert_alive(seen, ("stop", "length", "preemptions", "hits", "graphs", "aborted"))


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_both_loops_give_the_same(device, caching, eager):
    """One load, with everything that can happen to a request, in the plain and in the overlapped loop."""
    for overlapped in (False, True):
        setting = Setting("tiny", 8, 14, 5, 20, 100, caching, overlapped, eager)
        seen = run_load(device, "tiny", 4, 30, setting)
        assert seen["preemptions"] and bool(seen["graphs"]) != eager and bool(seen["hits"]) == caching


# ---- KV blocks, scheduler, preemption


@pytest.mark.parametrize("overlapped", LOOPS)
@pytest.mark.parametrize("size", [1, 8, 16, 32])
def test_lengths_around_a_block(device, overlapped, size):
    """Hazard: slot computed wrong when the length is a multiple of the block size."""
    engine = make_engine(device, block_size=size, async_scheduling=overlapped, max_model_len=512)
    lengths = [size - 1, size, size + 1, 2 * size, 5 * size + 3, 1]
    run(engine, [tokens(length, length) for length in lengths if length], 3)


def test_a_request_that_never_fits_is_refused_and_others_finish(device):
    """Hazard: assertion when KV space is exhausted; retrying loops for ever."""
    engine = make_engine(device, num_gpu_blocks_override=4, max_model_len=500)
    add(engine, "a", tokens(1, 20), greedy(30))
    with pytest.raises(UserError, match=r"needs 5 blocks of 16 tokens .* and the cache has 4; lower max_tokens to 15"):
        add(engine, "b", tokens(2, 50), greedy(30))
    assert list(drain(engine)) == ["a"]


@pytest.mark.parametrize("overlapped", LOOPS)
def test_a_pool_for_one_serves_two_in_turn(device, overlapped):
    """Hazard: all sequences preempted, assertion."""
    engine = make_engine(device, num_gpu_blocks_override=4, max_model_len=4 * B + 1, async_scheduling=overlapped)
    prompts = [tokens(1, 30), tokens(2, 33)]
    run(engine, prompts, 60)
    add(engine, "late", prompts[1], greedy(60))
    add(engine, "later", prompts[0], greedy(60))
    assert list(drain(engine)) == ["late", "later"]


@pytest.mark.parametrize("overlapped", LOOPS)
@pytest.mark.parametrize("caching", [False, True])
def test_preempted_in_mid_decode(device, overlapped, caching):
    """Hazards: scheduled-token count taken before the prefix hit; recompute counted as cache hits; thrash."""
    settings = {"num_gpu_blocks_override": 9, "max_model_len": 100, "async_scheduling": overlapped}
    engine = make_engine(device, enable_prefix_caching=caching, **settings)
    run(engine, [tokens(1, 2 * B), tokens(2, 2 * B), tokens(3, B - 1)], 40)
    stats = engine.stats()
    assert 0 < stats.num_preemptions <= 8
    assert stats.prefix_hit_rate == 0  # what a preempted request finds again is no hit


@pytest.mark.parametrize("overlapped", LOOPS)
def test_preempted_when_half_prefilled(device, overlapped):
    """Hazard: recompute of a preempted sequence incomplete."""
    engine = make_engine(
        device,
        num_gpu_blocks_override=8,
        max_model_len=120,
        max_num_batched_tokens=8,
        async_scheduling=overlapped,
        enable_prefix_caching=False,
    )
    add(engine, "0", tokens(1, 30), greedy(80))
    steps_until(engine, "0", 17)  # the next token needs a block more
    add(engine, "1", tokens(2, 70), greedy(20))
    scheduler: Any = engine.check_open().scheduler
    while not engine.stats().num_preemptions:
        computed = scheduler.running["1"].num_computed_tokens if "1" in scheduler.running else 0
        engine.step()
    assert 0 < computed < 70
    ended = drain(engine)
    assert near_ties("tiny", tokens(1, 30), ended["0"].outputs[0].token_ids) == 0
    assert near_ties("tiny", tokens(2, 70), ended["1"].outputs[0].token_ids) == 0


@pytest.mark.parametrize("overlapped", LOOPS)
@pytest.mark.parametrize("length", [B - 1, B, B + 1, 2 * B, 5 * B])
def test_the_same_prompt_again(device, overlapped, length):
    """Hazards: a fully cached prompt gives query length 0; a full hit must recompute the last token."""
    engine = make_engine(device, max_model_len=200, async_scheduling=overlapped)
    prompt = tokens(length, length)
    found = []
    for turn in ("first", "second", "third"):
        add(engine, turn, prompt, greedy(1, logprobs=1))
        [answer] = drain(engine)[turn].outputs
        assert near_ties("tiny", prompt, answer.token_ids) == 0
        assert answer.logprobs is not None
        found.append((answer.token_ids, round(answer.logprobs[0][answer.token_ids[0]].logprob, 4)))
    assert found[0] == found[1] == found[2]
    assert (engine.stats().prefix_hit_rate > 0) == (length > B)


@pytest.mark.parametrize("overlapped", LOOPS)
def test_hit_miss_hit(device, overlapped):
    """Hazard: block tables wrong when only some sequences of a batch have hits."""
    engine = make_engine(device, max_model_len=200, async_scheduling=overlapped)
    shared = tokens(1, 3 * B)
    run(engine, [shared], 1)
    run(engine, [shared + tokens(2, 5), tokens(3, 40), shared[: 2 * B] + tokens(4, 20)], 8)
    assert engine.stats().prefix_hit_rate > 0.3


@pytest.mark.parametrize("overlapped", LOOPS)
@pytest.mark.parametrize("size", [1, 16, 64])
def test_evicted_blocks_are_forgotten(device, overlapped, size):
    """Hazards: an evicted block is still in the cache map; eviction with page size > 1."""
    blocks = -(-3 * 16 // size) + 1
    engine = make_engine(
        device, block_size=size, num_gpu_blocks_override=blocks, max_model_len=50, async_scheduling=overlapped
    )
    prompts = {letter: tokens(ord(letter), 40) for letter in "ABC"}
    for letter in "ABCABACCA":
        run(engine, [prompts[letter]], 5)


@pytest.mark.parametrize("overlapped", LOOPS)
def test_abort_in_every_state(device, overlapped):
    """Hazard: abort leaks or crashes: while waiting, half prefilled, running, in flight, ended, twice, unknown."""
    engine = make_engine(
        device, max_num_seqs=2, max_num_batched_tokens=8, max_model_len=200, async_scheduling=overlapped
    )
    free = engine.check_open().pool.num_free
    survivor = tokens(9, 20)
    add(engine, "survivor", survivor, greedy(40))
    for request_id in ("waiting", "half prefilled"):
        add(engine, request_id, tokens(8, 60), greedy(5))
    engine.abort_request("waiting")
    steps_until(engine, "survivor", 2)
    add(engine, "queued", tokens(7, 30), greedy(3))
    scheduler: Any = engine.check_open().scheduler
    assert 0 < scheduler.running["half prefilled"].num_computed_tokens < 60
    for _ in range(2):
        engine.abort_request("half prefilled")
    steps_until(engine, "queued", 1)
    engine.abort_request("queued")
    engine.abort_request("nobody")
    ended = drain(engine)
    assert list(ended) == ["survivor"]
    engine.abort_request("survivor")
    assert near_ties("tiny", survivor, ended["survivor"].outputs[0].token_ids) == 0
    assert engine.check_open().pool.num_free == free
    run(engine, [tokens(8, 60), tokens(7, 30)], 5)


def test_an_id_comes_again_while_its_last_step_is_in_flight(device):
    """Hazard: ids drawn for a request that has ended reach the one that took its name."""
    engine = make_engine(device, max_model_len=200, async_scheduling=True)
    for seed in range(4):
        prompt = tokens(seed, 20)
        add(engine, "same", prompt, greedy(9))
        steps_until(engine, "same", 3)
        engine.abort_request("same")
    add(engine, "same", tokens(50, 33), greedy(9))
    assert near_ties("tiny", tokens(50, 33), drain(engine)["same"].outputs[0].token_ids) == 0


def test_blocks_that_a_late_step_still_writes_to(device):
    """Hazard: blocks freed while an async step still writes to them: the next owner's keys stay untouched.

    An end that only the ids show comes one step late, so each request here writes once after its end.
    """
    first = oracle("tiny").greedy(tokens(1, 17), 6)
    engine = make_engine(
        device, eos=(first[5],), num_gpu_blocks_override=3, max_model_len=48, async_scheduling=True, max_num_seqs=1
    )
    prompts = [tokens(1, 17), tokens(2, 33), tokens(1, 17), tokens(3, 40)]
    for index, prompt in enumerate(prompts):
        add(engine, str(index), prompt, SamplingParams(0.0, 8, ignore_eos=index % 2 == 1))
    ended = drain(engine)
    assert ended["0"].outputs[0].token_ids == ended["2"].outputs[0].token_ids == first
    for index in (1, 3):
        assert near_ties("tiny", prompts[index], ended[str(index)].outputs[0].token_ids) == 0


# ---- lengths


@pytest.mark.parametrize("overlapped", LOOPS)
@pytest.mark.parametrize("length", [3 * B - 1, 3 * B, 3 * B + 1])
def test_the_longest_prompt(device, overlapped, length):
    """Hazards: prompt == max_model_len, exceeded by one; refused with the engine still serving."""
    engine = make_engine(device, max_model_len=length, async_scheduling=overlapped)
    for too_long in (length, length + 1):
        with pytest.raises(UserError, match=f"the prompt has {too_long} tokens and max_model_len is {length}"):
            add(engine, "long", tokens(1, too_long), greedy(5))
    with pytest.raises(UserError, match="prompt_token_ids is empty"):
        add(engine, "empty", [], greedy(5))
    [answer] = run(engine, [tokens(1, length - 1)], 5)
    assert len(answer) == 1


@pytest.mark.parametrize("overlapped", LOOPS)
def test_to_the_very_end_with_graphs(device, overlapped):
    """Hazard: block table or captured graph too small for the sequence: what lies past a row is the next one's."""
    engine = make_engine(device, max_model_len=6 * B + 5, async_scheduling=overlapped)
    answers = run(engine, [tokens(3, 70), tokens(1, 3), tokens(2, B)], 500)
    assert [len(answer) for answer in answers] == [6 * B + 5 - length for length in (70, 3, B)]
    assert engine.check_open().runner.graphs.num_captured >= 2


@pytest.mark.parametrize("overlapped", LOOPS)
def test_warming_up_between_two_steps(device, overlapped):
    """Hazard: a warm-up takes the ids in flight from the next step, or leaves its own tokens in the cache."""
    engine = make_engine(device, max_model_len=100, max_num_seqs=4, async_scheduling=overlapped)
    prompts = [tokens(seed, 20) for seed in range(3)]
    for index, prompt in enumerate(prompts):
        add(engine, str(index), prompt, greedy(8))
    steps_until(engine, "0", 3)
    engine.warm_up()
    ended = drain(engine)
    for index, prompt in enumerate(prompts):
        assert near_ties("tiny", prompt, ended[str(index)].outputs[0].token_ids) == 0


def test_every_batch_size_with_graphs(device):
    """Hazard: batch sizes above or between the captured ones: each from 1 to max_num_seqs, equal to the reference."""
    most = 19
    engine = make_engine(device, max_num_seqs=most, max_model_len=100)
    prompts = [tokens(seed, 1 + seed % 5) for seed in range(most)]
    for index, prompt in enumerate(prompts):
        add(engine, str(index), prompt, greedy(2 + 3 * index))
    ended = drain(engine)  # one request fewer every third step
    for index, prompt in enumerate(prompts):
        assert near_ties("tiny", prompt, ended[str(index)].outputs[0].token_ids) == 0
    assert engine.check_open().runner.graphs.num_captured == len([1, 2, 4, 8, 16, 19])


# ---- sampling


@pytest.mark.parametrize("overlapped", LOOPS)
def test_a_seeded_request_draws_the_same_in_any_company(device, overlapped):
    """Hazard: seeds: the same alone, in a batch of 33, and after preemption."""
    prompt, params = tokens(1, 20), SamplingParams(1.3, 30, seed=11, ignore_eos=True)
    alone = make_engine(device, max_model_len=100)
    add(alone, "it", prompt, params)
    expected = drain(alone)["it"].outputs[0].token_ids
    crowded = make_engine(
        device, max_model_len=100, max_num_seqs=33, num_gpu_blocks_override=60, async_scheduling=overlapped
    )
    for index in range(32):
        add(crowded, str(index), tokens(index, 1 + index), SamplingParams(0.9, 40, seed=index, ignore_eos=True))
    add(crowded, "it", prompt, params)
    assert drain(crowded)["it"].outputs[0].token_ids == expected
    assert crowded.stats().num_preemptions


@pytest.mark.parametrize("overlapped", LOOPS)
@pytest.mark.parametrize("logprobs", [None, 1])
def test_the_order_of_a_loop(device, overlapped, logprobs, monkeypatch):
    """Overlapped: step k + 1 is launched before the ids of step k are asked for; plain: after."""
    engine = make_engine(device, max_model_len=100, async_scheduling=overlapped)
    parts, order = engine.check_open(), []
    forward, update = parts.runner.forward, parts.scheduler.update

    def noted_forward(plan: Any, **settings: Any) -> Any:
        order.append("f")
        return forward(plan, **settings)

    def noted_update(plan: Any, token_ids: Any) -> Any:
        order.append("u")
        return update(plan, token_ids)

    monkeypatch.setattr(parts.runner, "forward", noted_forward)
    monkeypatch.setattr(parts.scheduler, "update", noted_update)
    run(engine, [tokens(1, 5)], 4, logprobs=logprobs)
    assert "".join(order) == ("ffufufuu" if overlapped else "fufufufu")


# ---- errors


class BrokenError(Exception):
    """What a test lets go wrong."""


def break_once(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch, error: BaseException, after: int) -> None:
    """The forward of step `after` from now raises."""
    model, count = engine.check_open().runner.model, itertools.count()
    forward = model.forward

    def once(*args: Any) -> Any:
        if next(count) == after:
            raise error
        return forward(*args)

    monkeypatch.setattr(model, "forward", once)


@pytest.mark.parametrize("overlapped", LOOPS)
@pytest.mark.parametrize("error", [BrokenError("broken"), KernelError("broken"), KeyboardInterrupt()], ids=repr)
def test_an_error_in_a_step_leaves_a_usable_engine(device, overlapped, error, monkeypatch):
    """Hazard: an error, or Ctrl-C, in mid-step leaves requests or blocks behind."""
    engine = make_engine(device, max_model_len=100, async_scheduling=overlapped, enforce_eager=True)
    break_once(engine, monkeypatch, error, after=4)
    for index in range(3):
        add(engine, str(index), tokens(index, 30), greedy(20))
    with pytest.raises(type(error)):
        drain(engine)
    assert not engine.has_unfinished_requests()
    assert engine.check_open().pool.num_free == engine.stats().num_blocks
    run(engine, [tokens(index, 30) for index in range(3)], 20)


def test_lost_blocks_are_seen_when_idle(device):
    engine = make_engine(device, max_model_len=100)
    add(engine, "0", tokens(1, 30), greedy(5))
    engine.step()
    engine.check_open().pool.allocate(1)
    with pytest.raises(AssertionError, match="1 blocks have leaked"):
        while engine.has_unfinished_requests():
            engine.step()


def test_a_taken_id_is_refused(device):
    engine = make_engine(device, max_model_len=100)
    add(engine, "0", tokens(1, 30), greedy(5))
    with pytest.raises(UserError, match="request id '0' is taken"):
        add(engine, "0", tokens(2, 30), greedy(5))
    assert near_ties("tiny", tokens(1, 30), drain(engine)["0"].outputs[0].token_ids) == 0


# ---- graphs


def test_a_step_that_cannot_be_captured_runs_eagerly(device):
    """Hazard: an allocation during capture: it is ended, the cause is named, the engine goes on, one warning."""
    config = make_engine(device, max_model_len=40).check_open().runner.model.config
    from tiny_vllm.ops import make_ops

    plain = make_ops("tuned", device, config, np.float32)

    def through_the_host(gate_up: Any, out: Any) -> None:
        device.copy_in(out, device.to_host(plain.silu_mul(gate_up, out=out)))

    engine = make_engine(device, ops=plain.replace(silu_mul=through_the_host), max_model_len=100)
    with pytest.warns(RuntimeWarning, match="could not be captured into a CUDA graph") as warned:
        run(engine, [tokens(1, 20), tokens(2, 3)], 12)
    assert len(warned) == 1
    assert engine.check_open().runner.graphs.num_captured == 0


def test_an_operation_outside_the_graph_is_seen(device):
    """NumPy at work inside a step is no launch: a replay would leave it out and be silently wrong."""
    if device.name != "emulator":
        pytest.skip("CuPy's operations are launches in our stream")
    config = make_engine(device, max_model_len=40).check_open().runner.model.config
    from tiny_vllm.ops import make_ops

    plain = make_ops("tuned", device, config, np.float32)
    reference = make_ops("reference", device, config, np.float32)
    for name in ("take_rows", "rope", "write_kv", "rms_norm"):
        ops = plain.replace(**{name: getattr(reference, name)})
        engine = make_engine(device, ops=ops, max_model_len=100)
        with pytest.warns(RuntimeWarning, match="its replay gives other logits"):
            run(engine, [tokens(1, 20), tokens(2, 3)], 12)
