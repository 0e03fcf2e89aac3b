"""The greedy choice on the device."""

from __future__ import annotations

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.device.checks import check_shape
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.types import Array

MAX_ROWS = 1024  # of a launch; more go through in turns
FEW_ROWS = 16  # at most so many: a row is cut smaller, so that its blocks fill more of a GPU


class Argmax:
    """The id of the largest logit of each row: logits (R,V) float32 -> (R,) int32.

    The lowest id wins a tie; NaN never wins; a row of nothing but NaN gives 0. out=None allocates.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._library = KernelLibrary(device, np.float32)
        self._best, self._num_arrived = device.zeros((MAX_ROWS,), np.uint64), device.zeros((MAX_ROWS,), np.int32)

    def __call__(self, logits: Array, out: Array | None = None) -> Array:
        rows = len(logits)
        out = self._device.empty((rows,), np.int32) if out is None else out
        check_shape("argmax: out", out, (rows,))
        for start in range(0, rows, MAX_ROWS):
            few = slice(start, start + MAX_ROWS)
            self._launch(logits[few], out[few])
        return out

    def _launch(self, logits: Array, out: Array) -> None:
        rows, vocabulary = logits.shape
        tokens_per_block, threads = self._block_shape(rows, vocabulary)
        grid = (-(-vocabulary // tokens_per_block), rows)
        arguments = (logits, self._best, self._num_arrived, out, vocabulary, tokens_per_block)
        self._library.kernel("argmax.cu", "argmax")(grid, (threads,), arguments)

    def _block_shape(self, rows: int, vocabulary: int) -> tuple[int, int]:
        """Tokens, a multiple of four, and threads of a block."""
        if self._device.name == "emulator":
            return -(-vocabulary // 4) * 4, 1  # a thread that waits costs time there
        return (4096 if rows <= FEW_ROWS else 8192), 256
