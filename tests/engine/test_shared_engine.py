"""Threads that share an engine take turns: one is inside, the others wait at the lock, whatever they want."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engine.engine_load import make_engine, near_ties
from tests.engine.test_llm_engine import greedy, tokens
from tiny_vllm.engine.shared_engine import SharedEngine
from tiny_vllm.errors import UserError
from tiny_vllm.types import Request, RequestOutput

LONG = 60  # seconds until a test that hangs gives up; nothing waits so long otherwise
CALLS = ("make_request", "add_request", "abort_request", "step", "stats", "warm_up", "close")


class Doorman:
    """Holds the first thread inside its step, until a second one waits at the lock or has come in beside it."""

    def __init__(self, shared: SharedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared, self.second = shared, threading.Thread()
        self.is_inside, self.may_leave, self.has_come = (threading.Event() for _ in range(3))
        self.seen: list[str] = []  # what the second thread did first: "waits", or the call that it made
        self._lock = shared._lock
        monkeypatch.setattr(shared, "_lock", self)
        for name in CALLS:
            monkeypatch.setattr(shared.engine, name, self._watched(name))

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._see("waits")
            assert self._lock.acquire(timeout=LONG)

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def hold_step(self) -> Callable[[], list[RequestOutput]]:
        """The engine's step, as the first thread makes it: in the middle of it, the second one gets its chance."""
        step = self.shared.engine.step

        def held() -> list[RequestOutput]:
            if threading.current_thread() is not self.second:
                self.is_inside.set()
                assert self.may_leave.wait(LONG)
            return step()

        return held

    def _watched(self, name: str) -> Callable[..., Any]:
        call = getattr(self.shared.engine, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._see(name)
            return call(*args, **kwargs)

        return watched

    def _see(self, what: str) -> None:
        if threading.current_thread() is self.second:
            self.seen.append(what)
            self.has_come.set()


def request(shared: SharedEngine, name: str, seed: int) -> Request:
    return shared.engine.make_request(name, {"prompt_token_ids": tokens(seed, 20)}, greedy(6))


def caller(wish: str, shared: SharedEngine) -> Callable[[], object]:
    """What the second thread does; whatever must come before is done."""
    if wish == "stats":
        return shared.stats
    if wish == "warm up":
        return shared.warm_up
    if wish == "close":
        return shared.close
    stream: Iterator[RequestOutput] = shared.stream(request(shared, "second", 2))
    if wish != "add":
        next(stream)
    return stream.close if wish == "abort" else lambda: list(stream)  # type: ignore[attr-defined]


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("wish", ["add", "step", "abort", "stats", "warm up", "close"])
def test_who_comes_in_the_middle_of_a_step_waits(device, wish, overlapped, monkeypatch):
    """Hazard: two threads on one LLM. The one that comes second waits at the lock until the step has ended."""
    shared = SharedEngine(make_engine(device, max_model_len=100, async_scheduling=overlapped))
    second = caller(wish, shared)
    failed: list[BaseException] = []
    results: dict[str, Any] = {}

    def work(name: str, call: Callable[[], object]) -> None:
        try:
            results[name] = call()
        except BaseException as error:
            failed.append(error)

    doorman = Doorman(shared, monkeypatch)
    monkeypatch.setattr(shared.engine, "step", doorman.hold_step())
    mine = request(shared, "first", 1)
    first = threading.Thread(target=work, args=("first", lambda: shared.collect([mine], lambda: None)), daemon=True)
    doorman.second = threading.Thread(target=work, args=("second", second), daemon=True)
    first.start()
    assert doorman.is_inside.wait(LONG)
    doorman.second.start()
    assert doorman.has_come.wait(LONG)
    doorman.may_leave.set()
    for thread in (first, doorman.second):
        thread.join(LONG)
        assert not thread.is_alive()
    assert doorman.seen[0] == "waits", f"{doorman.seen[0]} in the middle of another thread's step"
    check_results(wish, results, failed)


def check_results(wish: str, results: dict[str, Any], failed: list[BaseException]) -> None:
    if failed:  # the lock was the closing thread's before the first one's answer was whole
        assert wish == "close" and [type(error) for error in failed] == [UserError]
        assert "this LLM is closed" in str(failed[0])
        return
    [output] = results["first"]
    assert near_ties("tiny", tokens(1, 20), output.outputs[0].token_ids) == 0
    if wish in ("add", "step"):
        assert near_ties("tiny", tokens(2, 20), results["second"][-1].outputs[0].token_ids) == 0


def test_an_output_reaches_the_thread_that_waits_for_it(device):
    """A step brings tokens for all: each goes to its own reader, though another one ran the step."""
    shared = SharedEngine(make_engine(device, max_model_len=100))
    streams = [shared.stream(request(shared, str(seed), seed)) for seed in range(3)]
    outputs: list[list[RequestOutput]] = [[next(stream)] for stream in streams]
    reader = threading.Thread(target=lambda: outputs[0].extend(streams[0]))  # to its end, all steps of it
    reader.start()
    reader.join(LONG)
    for each, stream in zip(outputs[1:], streams[1:], strict=True):
        each.extend(stream)
    for seed, each in enumerate(outputs):
        assert [len(output.outputs[0].token_ids) for output in each] == [1, 2, 3, 4, 5, 6]
        assert near_ties("tiny", tokens(seed, 20), each[-1].outputs[0].token_ids) == 0
