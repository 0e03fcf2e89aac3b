"""The scheduler by hand: small cases whose plans can be counted on paper, named after what went wrong elsewhere."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.engine.hash_model import EOS, STOP, Loop, PlainPool, lone_run
from tiny_vllm import types
from tiny_vllm.engine.block_pool import PrefixCachingBlockPool
from tiny_vllm.engine.scheduler import Scheduler
from tiny_vllm.errors import UserError
from tiny_vllm.types import IN_FLIGHT, Request, SamplingParams, StepPlan

B = 4  # the block size


def scheduler(num_blocks: int = 100, *, caching: bool = True, **limits: Any) -> Scheduler:
    given = {"max_num_seqs": 16, "max_num_batched_tokens": 1000, "max_model_len": 1000, **limits}
    return Scheduler(PrefixCachingBlockPool(num_blocks, B, caching), eos_token_ids=(EOS,), **given)


def request(name: str, length: int | list[int], max_tokens: int = 3, ignore_eos: bool = True, **more: Any) -> Request:
    """A prompt of its own, or the given one."""
    first = 100 * ord(name[0])
    prompt = length if isinstance(length, list) else list(range(first, first + length))
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos), **more)


def parts(plan: StepPlan) -> list[tuple[str, int, int, bool]]:
    """(id, start, end, is_sampled) of each part."""
    return [(part.request_id, part.start, part.end, part.is_sampled) for part in plan.requests]


def step(s: Scheduler, **drawn: int) -> list[tuple[str, int, int, bool]]:
    """One step of the plain loop; each sampled request draws 7 unless told otherwise."""
    plan = s.schedule()
    s.update(plan, {part.request_id: drawn.get(part.request_id, 7) for part in plan.requests if part.is_sampled})
    return parts(plan)


def is_lone(r: Request, max_model_len: int = 1000) -> bool:
    return (r.output_token_ids, r.finish_reason) == lone_run(r, max_model_len)


def free_blocks(s: Scheduler) -> int:
    assert isinstance(s.pool, PrefixCachingBlockPool)
    s.pool.check([r.block_ids for r in s.running.values()])
    return s.pool.num_free


def found(s: Scheduler, token_ids: list[int]) -> list[int]:
    assert s.prefix_cache is not None
    return s.prefix_cache.lookup(token_ids)


def test_it_is_the_protocol():
    s: types.Scheduler = scheduler()
    assert s.schedule() == StepPlan({})


# The plan of a step


def test_one_request_from_prompt_to_end():
    s = scheduler()
    r = request("a", 5, max_tokens=3)
    s.add(r)
    plan = s.schedule()
    [part] = plan.requests
    assert plan.num_scheduled_tokens == {"a": 5}
    assert part.token_ids == tuple(r.prompt_token_ids)
    assert (part.start, part.is_sampled, part.first_new_block, len(part.new_block_ids)) == (0, True, 0, 2)
    assert s.update(plan, {"a": 11}) == [r]
    plan = s.schedule()
    [part] = plan.requests
    assert (part.start, part.token_ids, part.is_sampled, part.new_block_ids) == (5, (11,), True, ())
    s.update(plan, {"a": 12})
    [r_again] = s.update(s.schedule(), {"a": 13})
    assert r_again is r and r.output_token_ids == [11, 12, 13] and r.finish_reason == "length"
    assert s.schedule().requests == () and free_blocks(s) == 100


def test_chunks_come_beside_the_next_tokens_of_others():
    s = scheduler(max_num_batched_tokens=6)
    s.add(request("a", 4))
    s.add(request("b", 9))
    s.add(request("c", 2))
    assert step(s) == [("a", 0, 4, True), ("b", 0, 2, False)]
    assert step(s) == [("a", 4, 5, True), ("b", 2, 7, False)]  # b gets what a leaves; c nothing
    assert step(s) == [("a", 5, 6, True), ("b", 7, 9, True), ("c", 0, 2, True)]
    assert step(s) == [("b", 9, 10, True), ("c", 2, 3, True)]


def test_max_num_seqs_run_at_once_and_nobody_overtakes():
    s = scheduler(num_blocks=4, max_num_seqs=2)
    for name, length in (("a", 8), ("b", 8), ("c", 1)):
        s.add(request(name, length, max_tokens=2))
    assert step(s) == [("a", 0, 8, True)]  # a and b have room for 9 tokens, 3 blocks, each; c would fit, b is before it
    assert step(s) == [("a", 8, 9, True)]
    assert step(s) == [("b", 0, 8, True), ("c", 0, 1, True)]
    s = scheduler(max_num_seqs=2)
    for name in "abc":
        s.add(request(name, 1, max_tokens=2))
    assert step(s) == [("a", 0, 1, True), ("b", 0, 1, True)]
    assert step(s) == [("a", 1, 2, True), ("b", 1, 2, True)]
    assert step(s) == [("c", 0, 1, True)]


@pytest.mark.parametrize(
    ("length", "expected"),
    [  # blocks after each of three steps: the prompt and one more token, then one more for position 4 or 8
        (B - 1, [1, 1, 2]),
        (B, [2, 2, 2]),
        (B + 1, [2, 2, 2]),
        (2 * B, [3, 3, 3]),
        (2 * B - 2, [2, 2, 2]),
    ],
)
@pytest.mark.parametrize("overlapped", [False, True])
def test_blocks_at_multiples_of_the_block_size(length, expected, overlapped):
    """hazards: slot computed wrong when length is a multiple of the block size."""
    s = scheduler()
    r = request("a", length, max_tokens=3)
    s.add(r)
    loop, sizes = Loop(s, overlapped), []
    for _ in range(3):
        loop.step()
        sizes += [len(r.block_ids)] if r.block_ids else []
    assert sizes == expected[: len(sizes)] and len(sizes) >= 2
    loop.run()
    assert sum(len(part.new_block_ids) for plan in loop.plans for part in plan.requests) == expected[-1]
    assert [parts(plan)[0][1:3] for plan in loop.plans] == [(0, length), (length, length + 1), (length + 1, length + 2)]
    assert is_lone(r)


@pytest.mark.parametrize("chunk", [1, 7, B, B + 1])
@pytest.mark.parametrize("overlapped", [False, True])
def test_chunk_boundaries(chunk, overlapped):
    """hazards: key length at a chunk boundary wrong; slot mapping wrong in chunked prefill."""
    s = scheduler(max_num_batched_tokens=chunk)
    r = request("a", 3 * chunk + 1)
    s.add(r)
    loop = Loop(s, overlapped)
    loop.run()
    expected = [(i * chunk, (i + 1) * chunk, False) for i in range(3)] + [
        (i, i + 1, True) for i in range(3 * chunk, 3 * chunk + 3)
    ]
    assert [parts(plan)[0][1:] for plan in loop.plans] == expected
    assert is_lone(r)


# Room


def test_a_request_that_the_pool_can_never_hold_is_refused():
    """hazards: assertion when KV space is exhausted; retrying loops for ever."""
    s = scheduler(num_blocks=4)
    fits, too_long = request("a", 10, max_tokens=7), request("b", 10, max_tokens=8)  # 16 and 17 tokens computed
    s.add(fits)
    message = (
        "request 'b' needs 5 blocks of 4 tokens for 10 prompt tokens and max_tokens 8, and the cache has 4; lower "
        "max_tokens to 7, or give the cache more blocks by num_gpu_blocks_override or gpu_memory_utilization"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        s.add(too_long)
    with pytest.raises(UserError, match=r"; shorten the prompt by 4 tokens or more, or"):
        s.add(request("c", 20, max_tokens=8))
    s.add(request("d", 16, max_tokens=1))
    loop = Loop(s)
    loop.run()
    assert loop.ended == ["a", "d"] and is_lone(fits) and len(fits.output_token_ids) == 7


def test_lengths_at_the_limit():
    """hazards: over-long prompts; prompt == max_model_len, exceed by one; empty prompt."""
    s = scheduler(max_model_len=10)
    for length in (0, 10, 11):
        with pytest.raises(
            UserError, match=rf"^request 'a' has {length} prompt tokens and max_model_len is 10; give 1 to 9"
        ):
            s.add(request("a", length))
    r = request("a", 9, max_tokens=100)
    s.add(r)
    assert step(s) == [("a", 0, 9, True)]
    assert (r.output_token_ids, r.finish_reason) == ([7], "length")


@pytest.mark.parametrize("overlapped", [False, True])
def test_max_model_len_ends_an_answer(overlapped):
    s = scheduler(max_model_len=10)
    r = request("a", 6, max_tokens=100)
    s.add(r)
    loop = Loop(s, overlapped)
    loop.run()
    assert len(r.output_token_ids) == 4 and is_lone(r, 10)
    assert max(part.end for plan in loop.plans for part in plan.requests) == 9  # the last token is never computed


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_pool_for_exactly_one(overlapped):
    """hazards: all sequences preempted, assertion."""
    s = scheduler(num_blocks=4)
    requests = [request(name, 9, max_tokens=8) for name in "ab"]  # 16 tokens computed: 4 blocks
    for r in requests:
        s.add(r)
    loop = Loop(s, overlapped)
    loop.run()
    assert loop.ended == ["a", "b"] and all(map(is_lone, requests))
    assert free_blocks(s) == 4


def test_the_youngest_goes_and_comes_back_first():
    """hazards: preempted requests resume where they were in the queue; c, younger, does not overtake b."""
    s = scheduler(num_blocks=4, caching=False)
    a, b = request("a", 6, max_tokens=9), request("b", 6, max_tokens=9)  # 14 tokens computed: 4 blocks
    for r in (a, b, request("c", 1)):
        s.add(r)
    for end in (6, 7, 8):
        assert [part[2] for part in step(s)] == [end, end]
    assert step(s) == [("a", 8, 9, True)]  # a wants its third block, b has the last two
    assert (b.num_preemptions, b.block_ids, b.num_computed_tokens) == (1, [], 0)
    assert b.output_token_ids == [7, 7, 7] and list(s.waiting) == ["b", "c"]
    assert s.stats().num_preemptions == 1
    for end in range(10, 15):
        assert step(s) == [("a", end - 1, end, True)]  # one block is free, c wants one, b is before it
    assert a.finish_reason == "length"
    assert step(s) == [("b", 0, 9, True), ("c", 0, 1, True)]


@pytest.mark.parametrize("overlapped", [False, True])
def test_resuming_counts_its_tokens_after_the_hit(overlapped):
    """hazards: scheduled-token count taken before the prefix hit, after preemption; counted as cache hits."""
    s = scheduler(num_blocks=5)
    a, b = request("a", 7, max_tokens=12), request("b", 7, max_tokens=6)  # 5 and 3 blocks
    s.add(a)
    s.add(b)
    loop = Loop(s, overlapped)
    loop.run(until=lambda: b.num_preemptions == 1)
    hits, queries = s.stats().prefix_hits, s.stats().prefix_queries
    assert (hits, queries) == (0, 14)
    loop.run(until=lambda: a.finish_reason is not None)
    loop.run(until=lambda: bool(b.block_ids))
    [part] = [part for part in loop.plans[-1].requests if part.request_id == "b"]
    assert part.start % B == 0 and part.end == b.num_tokens - (0 if overlapped else 1) and part.is_sampled
    loop.run()
    assert is_lone(a) and is_lone(b) and free_blocks(s) == 5
    assert (s.stats().prefix_hits, s.stats().prefix_queries, b.num_cached_tokens) == (hits, queries, 0)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_preempted_when_half_prefilled_and_after_ten_tokens(overlapped, caching):
    """hazards: recompute of preempted sequence incomplete."""
    s = scheduler(num_blocks=10, caching=caching, max_num_batched_tokens=2)
    a, b = request("a", 3, max_tokens=30), request("b", 20, max_tokens=3)
    s.add(a)
    s.add(b)
    loop = Loop(s, overlapped)
    loop.run(until=lambda: b.num_preemptions > 0)
    assert b.output_token_ids == [] and len(a.output_token_ids) >= 8  # b gets one token a step: it was half prefilled
    loop.run()
    assert is_lone(a) and is_lone(b)

    s = scheduler(num_blocks=10, caching=caching)
    a, b = request("a", 5, max_tokens=30), request("b", 3, max_tokens=20)
    s.add(a)
    s.add(b)
    loop = Loop(s, overlapped)
    loop.run(until=lambda: b.num_preemptions > 0)
    assert len(b.output_token_ids) >= 10
    loop.run()
    assert is_lone(a) and is_lone(b)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_pool_that_is_short_by_one_block_does_not_thrash(count, caching, overlapped):
    """hazards: preempt/resume thrash. Each request grows from 2 blocks to 6."""
    s = scheduler(num_blocks=6 * count - 1, caching=caching)
    requests = [request(chr(97 + i), 5, max_tokens=20) for i in range(count)]
    for r in requests:
        s.add(r)
    loop = Loop(s, overlapped)
    loop.run()
    assert all(map(is_lone, requests))
    assert s.stats().num_preemptions == 1  # only the last block is missing; who loses it waits until the others end
    assert len(loop.plans) <= 20 + 20 + 2  # the longest two one after another


@pytest.mark.parametrize("overlapped", [False, True])
def test_three_answers_to_one_prompt_in_a_tight_pool(overlapped):
    """hazards: preemption with n > 1."""
    s = scheduler(num_blocks=5)
    requests = [request(f"a{i}", 9, max_tokens=8) for i in range(3)]
    for r in requests:
        s.add(r)
    Loop(s, overlapped).run()
    assert all(map(is_lone, requests)) and free_blocks(s) == 5


# Prefixes


@pytest.mark.parametrize(("length", "start"), [(B, 0), (2 * B, B), (2 * B + 1, 2 * B), (3 * B - 1, 2 * B)])
@pytest.mark.parametrize("max_tokens", [1, 3])
@pytest.mark.parametrize("overlapped", [False, True])
def test_the_last_token_of_a_known_prompt_is_computed_again(length, start, max_tokens, overlapped):
    """hazards: fully cached prompt of k*B tokens gives query length 0; full hit must recompute the last token."""
    s = scheduler()
    first, second = request("a1", length, max_tokens), request("a2", length, max_tokens)
    s.add(first)
    loop = Loop(s, overlapped)
    loop.run()
    s.add(second)
    loop.plans.clear()
    loop.run()
    assert parts(loop.plans[0]) == [("a2", start, length, True)]
    assert second.num_cached_tokens == start and s.stats().prefix_hits == start
    assert s.stats().prefix_hit_rate == start / (2 * length)
    assert is_lone(first) and second.output_token_ids == first.output_token_ids


def test_only_some_of_a_batch_have_hits():
    """hazards: block tables wrong when only some sequences of a batch have hits."""
    s = scheduler()
    prompt = list(range(10))
    s.add(request("first", prompt))
    loop = Loop(s)
    loop.run()
    batch = [request("x", [*prompt, 50]), request("miss", 11), request("y", [*prompt[:6], 60, 61])]
    for r in batch:
        s.add(r)
    plan = loop.step()
    assert parts(plan) == [("x", 8, 11, True), ("miss", 0, 11, True), ("y", 4, 8, True)]
    x, _, y = plan.requests
    assert x.new_block_ids[:1] == y.new_block_ids[:1] and not set(x.new_block_ids[1:]) & set(y.new_block_ids)
    loop.run()
    assert all(map(is_lone, batch))


@pytest.mark.parametrize("overlapped", [False, True])
def test_prompts_in_turn_push_each_other_out(overlapped):
    """hazards: evicted block still in the cache map / used while being evicted."""
    s = scheduler(num_blocks=5)
    loop = Loop(s, overlapped)
    for i, name in enumerate("abcabbca"):
        r = request(f"{name}{i}", 13, max_tokens=6)
        s.add(r)
        loop.run()
        assert is_lone(r)


def test_a_hit_is_not_evicted_to_make_room_for_its_own_request():
    s = scheduler(num_blocks=4)
    loop = Loop(s)
    for r in (request("a1", 5, max_tokens=1), request("z", 8, max_tokens=1)):
        s.add(r)
        loop.run()
    r = request("a2", 9, max_tokens=4)  # of three blocks the first is found, one is empty, and one of z's has to go
    s.add(r)
    assert found(s, r.prompt_token_ids) != []  # it was used before z's
    assert parts(loop.step()) == [("a2", 4, 9, True)]
    loop.run()
    assert is_lone(r)


def test_nothing_is_found_before_it_is_computed():
    """A block is told to others once its step has been launched, not by its own plan; never with an id in flight."""
    s = scheduler()
    a = request("a1", 7, max_tokens=9)
    s.add(a)
    first = s.schedule()
    assert found(s, a.prompt_token_ids) == []
    second = s.schedule()  # fills the second block with a token that is not known yet
    assert found(s, a.prompt_token_ids) == a.block_ids[:1]
    s.update(first, {"a1": 33})
    assert found(s, [*a.prompt_token_ids, 33]) == a.block_ids[:1]
    s.update(second, {"a1": 34})
    assert found(s, [*a.prompt_token_ids, 33]) == a.block_ids[:2]
    assert found(s, [*a.prompt_token_ids, IN_FLIGHT]) == a.block_ids[:1]


def test_a_request_may_leave_the_prefix_cache_alone():
    s = scheduler()
    loop = Loop(s)
    s.add(request("a1", 9))
    loop.run()
    s.add(request("a2", 9, skip_reading_prefix_cache=True))
    assert parts(loop.step()) == [("a2", 0, 9, True)]


# Ends


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize(
    ("ignore_eos", "drawn", "output", "reason"),
    [
        (False, [9, EOS, 9, 9], [9, EOS], "stop"),
        (False, [9, 9, 9, EOS], [9, 9, 9, EOS], "stop"),  # on the last that is allowed
        (True, [9, EOS, 9, 9], [9, EOS, 9, 9], "length"),
        (True, [9, STOP, 9, 9], [9, STOP], "stop"),
    ],
)
def test_ends(ignore_eos, drawn, output, reason, overlapped):
    s = scheduler()
    r = request("a", 5, max_tokens=4, ignore_eos=ignore_eos, stop_token_ids=frozenset([STOP]))
    s.add(r)
    plans, ids = [s.schedule()], iter(drawn)
    while not r.finish_reason:
        plans += [s.schedule()] if overlapped else []
        s.update(plans.pop(0), {"a": next(ids)})
        plans += [] if overlapped or r.finish_reason else [s.schedule()]
    for plan in plans:
        assert s.update(plan, {"a": 5}) == []  # the step after an end that nobody saw coming
    assert (r.output_token_ids, r.finish_reason) == (output, reason) and free_blocks(s) == 100


def test_an_end_that_only_the_engine_sees():
    s = scheduler()
    r = request("a", 5, max_tokens=9)
    s.add(r)
    step(s)
    plan = s.schedule()
    s.finish("a", "stop")
    assert s.update(plan, {"a": 8}) == []
    assert (r.finish_reason, r.output_token_ids) == ("stop", [7]) and free_blocks(s) == 100


def test_a_taken_id_is_refused_and_a_finished_one_is_free():
    s = scheduler()
    s.add(request("a", 5, max_tokens=1))
    with pytest.raises(UserError, match="request id 'a' is taken; give each request an id of its own"):
        s.add(request("a", 6))
    step(s)
    s.add(request("a", 6))
    assert step(s) == [("a", 4, 6, True)]  # it begins with the block that the first left


# The overlapped loop


def test_the_next_step_is_planned_before_the_ids_are_known():
    s = scheduler()
    r = request("a", 5, max_tokens=3)
    s.add(r)
    first, second = s.schedule(), s.schedule()
    assert (parts(second), second.requests[0].token_ids) == ([("a", 5, 6, True)], (IN_FLIGHT,))
    assert s.update(first, {"a": 11}) == [r]
    third = s.schedule()
    assert (parts(third), third.requests[0].token_ids) == ([("a", 6, 7, True)], (IN_FLIGHT,))
    assert s.update(second, {"a": 12}) == [r]
    assert s.schedule().requests == ()  # the token in flight is the last by max_tokens
    assert s.update(third, {"a": 13}) == [r]
    assert r.output_token_ids == [11, 12, 13] and free_blocks(s) == 100


def test_the_id_of_a_preempted_request_is_dropped():
    s = scheduler(num_blocks=4, caching=False)
    a, b = request("a", 6, max_tokens=9), request("b", 6, max_tokens=9)
    s.add(a)
    s.add(b)
    step(s)
    step(s)
    in_flight = s.schedule()
    assert parts(in_flight) == [("a", 7, 8, True), ("b", 7, 8, True)]
    after = s.schedule()  # a wants a third block: b goes, with its token in flight
    assert parts(after) == [("a", 8, 9, True)]
    assert s.update(in_flight, {"a": 20, "b": 21}) == [a]
    assert (a.output_token_ids, b.output_token_ids) == ([7, 7, 20], [7, 7])
    assert (b.num_in_flight, b.num_computed_tokens) == (0, 0)
    assert b.epoch != in_flight.requests[1].epoch and a.epoch == in_flight.requests[0].epoch


def test_an_id_that_comes_again_does_not_get_its_predecessors_tokens():
    s = scheduler()
    s.add(request("a", 5))
    in_flight = s.schedule()
    s.abort("a")
    r = request("a", 6)
    s.add(r)
    plan = s.schedule()
    assert s.update(in_flight, {"a": 20}) == []
    assert s.update(plan, {"a": 21}) == [r] and r.output_token_ids == [21]


@pytest.mark.parametrize("end", ["abort", "stop"])
def test_blocks_of_an_end_in_flight_go_to_others(end):
    """hazards: blocks freed while an async step still writes to them. The stream runs the steps in order."""
    s = scheduler(num_blocks=2)
    a, b, c = request("a", 3, max_tokens=6), request("b", 3, max_tokens=2), request("c", 3, max_tokens=2)
    for r in (a, b, c):
        s.add(r)
    loop = Loop(s, overlapped=True)
    loop.step()
    loop.step()
    [block] = a.block_ids
    assert parts(loop.in_flight[0][0])[0] == ("a", 3, 4, True)  # writes to the block's last slot
    s.finish("a", end)
    plan = loop.step()  # the owner to come writes after it, and only then a's result arrives and is dropped
    assert [(part.request_id, part.new_block_ids) for part in plan.requests] == [("c", (block,))]
    assert len(a.output_token_ids) == 1 and found(s, a.token_ids) == []
    loop.run()
    assert is_lone(b) and is_lone(c) and free_blocks(s) == 2


# Aborts


@pytest.mark.parametrize(
    "state", ["waiting", "half prefilled", "running", "in flight", "preempted", "ended", "unknown"]
)
@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("twice", [False, True])
def test_abort(state, overlapped, twice):
    """hazards: abort/cancel leaks or crashes."""
    s = scheduler(num_blocks=6, max_num_batched_tokens=4, max_num_seqs=1 if state == "waiting" else 2)
    other, r = request("a", 3, max_tokens=20), request("b", 7, max_tokens=4)
    s.add(other)
    s.add(r)
    loop = Loop(s, overlapped)
    moments = {
        "waiting": lambda: other.num_computed_tokens == 5,
        "half prefilled": lambda: 0 < r.num_computed_tokens < 7,
        "running": lambda: len(r.output_token_ids) == 2,
        "in flight": lambda: len(r.output_token_ids) == 2,
        "preempted": lambda: r.num_preemptions == 1,
        "ended": lambda: r.finish_reason is not None,
        "unknown": lambda: other.num_computed_tokens == 5,
    }
    if state == "preempted":
        s.abort("b")
        r = request("b", 7, max_tokens=10)
        s.add(r)
    loop.run(until=moments[state])
    plan = s.schedule() if state == "in flight" else None
    name, reason = ("nobody", r.finish_reason) if state == "unknown" else ("b", r.finish_reason or "abort")
    for _ in range(1 + twice):
        s.abort(name)
    free_blocks(s)
    assert r.finish_reason == reason and (r.block_ids == [] or state == "unknown")
    if plan:
        loop.in_flight.append((plan, loop.model.run(plan)))
        loop.scheduler.update(*loop.in_flight.popleft())
    loop.run()
    assert is_lone(other) and free_blocks(s) == 6
    assert r.output_token_ids == lone_run(r, 1000)[0][: len(r.output_token_ids)]


# Set-up


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "max_model_len"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True, None])
def test_limits_are_whole_numbers(name, value):
    with pytest.raises(UserError, match=rf"^{name} is {value!r}; give a whole number of at least [12]$"):
        scheduler(**{name: value})


def test_a_pool_without_prefixes_stands_in():
    s = Scheduler(PlainPool(5, B), max_num_seqs=4, max_num_batched_tokens=8, max_model_len=20)
    requests = [request(name, 9, max_tokens=8) for name in ("a1", "a2", "b")]
    for r in requests:
        s.add(r)
    Loop(s).run()
    assert all(map(is_lone, requests)) and s.pool.num_free == 5
    assert s.stats().prefix_hit_rate == 0


def test_stats():
    s = scheduler(num_blocks=10, max_num_seqs=2)
    assert s.stats().prefix_hit_rate == 0
    for name in ("a1", "b", "c"):
        s.add(request(name, 8, max_tokens=2))
    step(s)
    stats = s.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks, stats.num_blocks) == (2, 1, 6, 10)
    assert (stats.prefix_queries, stats.prefix_hits, stats.num_preemptions) == (16, 0, 0)
