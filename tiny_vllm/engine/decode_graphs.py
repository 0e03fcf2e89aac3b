"""Decode steps as CUDA graphs (chapter 16): a hundred launches become one.

A graph replays launches with the arguments that they had, so a step is padded to one of a few sizes, and one graph
serves every step of its size: what changes between them lies in arrays that do not move.
"""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tiny_vllm.device.base import Device, Graph
from tiny_vllm.errors import KernelError
from tiny_vllm.types import Array

TOLERANCE = 1e-2  # of logits, relative and absolute; what the graph does not hold leaves NaN


def bucket_sizes(largest: int) -> list[int]:
    """1, 2, 4, 8, 16, 24, ... and `largest` itself: from 8 rows on, padding adds 7 at most."""
    return sorted({size for size in (1, 2, 4, *range(8, largest, 8)) if size < largest} | {largest})


@dataclass(frozen=True)
class DecodeStep:
    """A step of one token a request, ready to run.

    eager, captured: run it, and return its logits; the launches of `captured` are sized for requests of any length.
    spoil: fill everything that the step writes with NaN.
    """

    eager: Callable[[], Array]
    captured: Callable[[], Array]
    spoil: Callable[[], None]


class DecodeGraphs:
    """Graphs of decode steps, each captured when a step of its size comes for the second time.

    The first runs eagerly and so compiles its kernels, since a capture must meet no compiler. A new graph is believed
    only once it has given the logits of the eager step, after everything that a step writes was spoilt: an operation
    that is no launch (NumPy's on the emulator) is not in the graph, and a replay would be silently wrong. If a capture
    fails, all steps run eagerly from then on, and one warning says so.
    """

    def __init__(self, device: Device, sizes: Sequence[int]) -> None:
        """sizes: ascending; none of them: never capture."""
        self._device, self.sizes = device, list(sizes)
        self._seen: set[int] = set()
        self._graphs: dict[int, tuple[Graph, Array]] = {}

    @property
    def num_captured(self) -> int:
        return len(self._graphs)

    def size_for(self, num_requests: int) -> int | None:
        """The size that a decode step of so many requests is padded to; None: there is none, run it as it is."""
        index = bisect.bisect_left(self.sizes, num_requests)
        return self.sizes[index] if index < len(self.sizes) else None

    def run(self, size: int, step: DecodeStep) -> Array:
        """Run a step of this size; its logits."""
        if size in self._graphs:
            graph, logits = self._graphs[size]
            graph.launch()
            return logits
        logits = step.eager()
        if size not in self._seen:
            self._seen.add(size)
            return logits
        try:
            self._capture(size, self._ends(logits), step)
        except Exception as error:
            self._give_up(error)
            return step.eager()
        return logits

    def _capture(self, size: int, expected: np.ndarray, step: DecodeStep) -> None:
        """Capture the step that has just run, and run it once more: the same inputs give the same results."""
        with self._device.capture() as graph:
            logits = step.captured()
        step.spoil()
        graph.launch()
        if not np.allclose(self._ends(logits), expected, TOLERANCE, TOLERANCE, equal_nan=True):
            raise KernelError("its replay gives other logits, so some operation of it is not a launch in our stream")
        self._graphs[size] = graph, logits

    def _ends(self, logits: Array) -> np.ndarray:
        """The first row and the last, on the host: a launch that is missing is missing for all rows."""
        return np.concatenate([self._device.to_host(logits[:1]), self._device.to_host(logits[-1:])])

    def _give_up(self, error: Exception) -> None:
        self._graphs.clear()
        self.sizes = []
        warnings.warn(
            f"a decode step could not be captured into a CUDA graph ({error}); steps run eagerly from now on, which "
            "gives the same answers more slowly; enforce_eager=True says so from the start",
            RuntimeWarning,
            stacklevel=2,
        )
