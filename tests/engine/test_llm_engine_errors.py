"""An engine whose step is interrupted, or whose parts do what they should not, serves on or says why it cannot."""

from __future__ import annotations

import sys
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.engine_load import check_pool, make_engine
from tests.engine.hash_model import PlainPool
from tests.engine.test_llm_engine import LOOPS, BrokenError, add, break_once, drain, greedy, run, steps_until, tokens
from tiny_vllm.engine.scheduler import Scheduler
from tiny_vllm.errors import UserError
from tiny_vllm.types import SamplingParams


class PlainScheduler:
    """Nothing but the protocol, as a student's."""

    def __init__(self, pool: Any, **limits: Any) -> None:
        self._scheduler = Scheduler(pool, **limits)
        self.add, self.abort = self._scheduler.add, self._scheduler.abort
        self.schedule, self.update = self._scheduler.schedule, self._scheduler.update


@pytest.mark.parametrize(("scheduler", "lives"), [(None, True), (PlainScheduler, False)])
def test_an_error_that_loses_blocks(device, scheduler, lives, monkeypatch):
    """The engine's own scheduler and pool begin anew; others cannot be trusted any more."""
    engine = make_engine(device, max_model_len=100, scheduler=scheduler)
    engine.check_open().pool.allocate(1)
    break_once(engine, monkeypatch, BrokenError("the cause"), after=1)
    add(engine, "0", tokens(1, 30), greedy(20))
    with pytest.raises(BrokenError):
        steps_until(engine, "0", 20)
    if lives:
        run(engine, [tokens(index, 30) for index in range(3)], 20)
    else:
        with pytest.raises(UserError, match=r"has stopped after an error \(BrokenError\('the cause'\)\); make a new"):
            add(engine, "1", tokens(1, 30), greedy(20))


@pytest.mark.parametrize("overlapped", LOOPS)
def test_an_interrupt_at_any_line(device, overlapped):
    """Hazard: Ctrl-C comes between two lines that belong together, and rows, slots or blocks are lost."""
    engine = make_engine(
        device, max_model_len=100, max_num_seqs=3, num_gpu_blocks_override=9, async_scheduling=overlapped
    )
    params = SamplingParams(0.0, 8, repetition_penalty=1.2, ignore_eos=True)
    files = ("block_tables.py", "block_pool.py", "scheduler.py", "token_history.py")
    left = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left == 0:
            raise KeyboardInterrupt
        return trace

    for opcode in range(5, 8000, 199):
        left = opcode
        for index in range(5):
            add(engine, str(index), tokens(index, 30), params)
        sys.settrace(trace)
        try:
            while engine.has_unfinished_requests():
                engine.step()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        check_pool(engine)
        assert engine.stats().num_used_blocks == 0
    run(engine, [tokens(index, 30) for index in range(5)], 20)


def test_an_interrupt_that_loses_a_row(device, monkeypatch):
    """Between taking a row of the device's block tables and noting whose it is."""
    engine = make_engine(device, max_model_len=100, max_num_seqs=3)
    tables = engine.check_open().runner.inputs.tables

    class Interrupted(OrderedDict[str, int]):
        def __setitem__(self, key: str, value: int) -> None:
            raise BrokenError("interrupted")

    monkeypatch.setattr(tables, "_rows", Interrupted())
    add(engine, "0", tokens(1, 30), greedy(20))
    with pytest.raises(BrokenError):
        engine.step()
    run(engine, [tokens(index, 30) for index in range(3)], 20)


def test_a_request_runs_once_and_under_its_own_id(device):
    engine = make_engine(device, max_model_len=100)
    request = engine.make_request("a", {"prompt_token_ids": tokens(1, 30)}, greedy(5))
    with pytest.raises(UserError, match="request 'b' is another one's, or has run already; make a new one"):
        engine.add_request("b", request)
    engine.add_request("a", request)
    drain(engine)
    with pytest.raises(UserError, match="request 'a' is another one's, or has run already; make a new one"):
        engine.add_request("a", request)


@pytest.mark.parametrize("call", ["step", "close"])
def test_a_sampler_that_calls_the_engine(device, call):
    class Caller:
        def sample(self, logits: Any, requests: Any) -> list[int]:
            getattr(engine, call)()
            return [0] * len(requests)

    engine = make_engine(device, max_model_len=100, sampler=Caller())
    add(engine, "0", tokens(1, 30), greedy(5))
    message = {"step": "a step is asked for in the middle of a step", "close": "this LLM is closed; make a new one"}
    with pytest.raises(UserError, match=message[call]):
        engine.step()


@pytest.mark.parametrize("ids", [[512], [-1], [2**40], [1, 2], [], None, [1.5]], ids=repr)
def test_a_sampler_that_gives_no_ids(device, ids):
    """Hazard: an id beyond the vocabulary is read as a row of the embedding."""
    engine = make_engine(device, max_model_len=100, sampler=SimpleNamespace(sample=lambda *_: ids))
    add(engine, "0", tokens(1, 30), greedy(5))
    with pytest.raises(UserError, match=r"the sampler gave .* for 1 rows; give 1 ids from 0 to 511"):
        drain(engine)


@pytest.mark.parametrize("block", [9, -1, 2**40, 1.5, "0", None], ids=repr)
def test_a_pool_that_hands_out_blocks_that_are_not_there(device, block):
    """Hazard: keys written beyond the cache."""

    def make_pool(num_blocks: int, block_size: int, enable_prefix_caching: bool) -> PlainPool:
        pool = PlainPool(num_blocks, block_size)
        pool.blocks[1] = block
        return pool

    engine = make_engine(device, max_model_len=100, num_gpu_blocks_override=9, block_pool=make_pool)
    add(engine, "0", tokens(1, 10), greedy(5))
    add(engine, "1", tokens(2, 10), greedy(5))
    with pytest.raises(UserError, match=r"request '1' was given block .*, and the cache has blocks 0 to 8; allocate"):
        drain(engine)
