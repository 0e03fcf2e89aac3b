"""One engine and several callers: streams that are read in turn, batches beside them, threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tiny_vllm.engine.engine_stats import EngineStats
from tiny_vllm.engine.llm_engine import LLMEngine
from tiny_vllm.errors import UserError
from tiny_vllm.types import Request, RequestOutput

Sink = Callable[[RequestOutput], object]


class SharedEngine:
    """Whoever waits for an output runs the next step; what it brings for the others waits for them.

    Threads may share it: they take turns, a step each.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self._lock = threading.RLock()
        self._sinks: dict[str, Sink] = {}

    def collect(self, requests: Sequence[Request], progress: Callable[[], object]) -> list[RequestOutput]:
        """What the requests have become in the end, in their order. progress is called as each of them ends."""
        results: dict[str, RequestOutput] = {}

        def take(output: RequestOutput) -> None:
            results[output.request_id] = output
            progress()

        with self._open(requests, take, final_only=True):
            for request in requests:
                self._run(request, until=partial(results.__contains__, request.request_id))
        return [results[request.request_id] for request in requests]

    def stream(self, request: Request) -> Iterator[RequestOutput]:
        """What the request becomes, after each new token; it is added when the first is asked for."""
        outputs: deque[RequestOutput] = deque()
        with self._open([request], outputs.append, final_only=False):
            while True:
                self._run(request, until=lambda: bool(outputs))
                output = outputs.popleft()
                yield output
                if output.finished:
                    return

    def stats(self) -> EngineStats:
        with self._lock:
            return self.engine.stats()

    def warm_up(self) -> None:
        """Warm the engine up, after the step that another thread may be at: both write to the same buffers."""
        with self._lock:
            self.engine.warm_up()

    def close(self) -> None:
        """Close the engine, after the step that another thread may be at."""
        with self._lock:
            self.engine.close()

    @contextmanager
    def _open(self, requests: Sequence[Request], take: Sink, final_only: bool) -> Iterator[None]:
        """The requests are in the engine; at the end, Ctrl-C and errors included, nothing of them stays behind."""
        try:
            for request in requests:
                with self._lock:
                    self._sinks[request.request_id] = take
                    self.engine.add_request(request.request_id, request, final_only=final_only)
            yield
        finally:
            with self._lock:
                for request in requests:
                    self._sinks.pop(request.request_id, None)
                    if not self.engine.closed:
                        self.engine.abort_request(request.request_id)

    def _run(self, request: Request, until: Callable[[], bool]) -> None:
        """Run steps until the caller has what it waits for, by its own steps or by another thread's."""
        while True:
            with self._lock:
                if until():
                    return
                if not self.engine.is_unfinished(request.request_id):
                    raise UserError("an error in another request's step has ended this answer too; start it again")
                for output in self.engine.step():
                    if output.request_id in self._sinks:
                        self._sinks[output.request_id](output)
