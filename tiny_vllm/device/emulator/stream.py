"""The emulator's one stream: launches run at once, or are recorded while a graph is captured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from tiny_vllm.device.base import Event
from tiny_vllm.errors import KernelError, LaunchError


class EmulatorGraph:
    """Recorded launches, with the arguments that they had when they were recorded."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._runs: list[Callable[[], None]] = []
        self._complete = False

    def launch(self) -> None:
        """Run them in order. Raises LaunchError while the capture goes on, and after one that failed."""
        if not self._complete:
            raise LaunchError("the graph's capture is not complete (CUDA_ERROR_ILLEGAL_STATE); launch it afterwards")
        self._stream.forbid_in_capture("graph.launch")
        for run in self._runs:
            run()


class EmulatorEvent:
    """A mark in the stream: the time at which everything before it was done."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._time: float | None = None

    def record(self) -> None:
        self._stream.submit(self._mark)

    def _mark(self) -> None:
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        self._stream.forbid_in_capture("event.synchronize")

    def elapsed_ms(self, start: Event) -> float:
        """Milliseconds from start to this event. Raises LaunchError unless both were recorded."""
        assert isinstance(start, EmulatorEvent)
        if self._time is None or start._time is None:
            raise LaunchError("elapsed_ms: an event was never recorded (CUDA_ERROR_INVALID_HANDLE); record() both")
        return (self._time - start._time) * 1e3


class EmulatorFetch:
    """Values that are on the host already, since launches run at once."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def wait(self) -> np.ndarray:
        return self._values


class Stream:
    """Runs what is submitted, or records it; knows what may not happen now."""

    def __init__(self) -> None:
        self._graph: EmulatorGraph | None = None
        self._failure: KernelError | None = None
        self._no_allocation = 0

    @property
    def capturing(self) -> bool:
        return self._graph is not None

    def submit(self, run: Callable[[], None]) -> None:
        if self._graph is None:
            run()
        else:
            self.record(run)

    def record(self, run: Callable[[], None]) -> None:
        assert self._graph is not None
        self._graph._runs.append(run)

    @contextmanager
    def capture(self) -> Iterator[EmulatorGraph]:
        """Record into a new graph. Whatever goes wrong inside ends the capture; the first cause is raised."""
        self.forbid_in_capture("capture")
        graph, self._graph, self._failure = EmulatorGraph(self), None, None
        self._graph = graph
        try:
            yield graph
            if self._failure is not None:  # somebody caught it, but the capture is spoilt
                raise self._failure
            graph._complete = True
        except Exception as error:
            if self._failure is not None and error is not self._failure:
                raise self._failure from error
            raise
        finally:
            self._graph, self._failure = None, None

    def forbid_in_capture(self, what: str) -> None:
        """Raises LaunchError while a graph is captured, and spoils the capture, as CUDA does."""
        if self._graph is None:
            return
        failure = LaunchError(
            f"{what}: operation not permitted when stream is capturing (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); "
            "do it before the capture"
        )
        self._failure = self._failure or failure
        raise failure

    @contextmanager
    def no_allocation(self) -> Iterator[None]:
        """Inside, about_to_allocate raises."""
        self._no_allocation += 1
        try:
            yield
        finally:
            self._no_allocation -= 1

    def about_to_allocate(self, what: str) -> None:
        self.forbid_in_capture(what)
        if self._no_allocation:
            raise KernelError(f"{what}: an allocation where none is allowed; allocate before, and pass out=")
