"""The greedy choice on the device."""

from __future__ import annotations

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.device.checks import check_shape
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.types import Array


class Argmax:
    """The id of the largest logit of each row: logits (R,V) float32 -> (R,) int32.

    The lowest id wins a tie; NaN never wins; a row of nothing but NaN gives 0. out=None allocates.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._library = KernelLibrary(device, np.float32)
        self._threads = 16 if device.name == "emulator" else 1024  # a thread that waits costs time on the emulator

    def __call__(self, logits: Array, out: Array | None = None) -> Array:
        rows, vocabulary = logits.shape
        out = self._device.empty((rows,), np.int32) if out is None else out
        check_shape("argmax: out", out, (rows,))
        if rows:
            self._library.kernel("argmax.cu", "argmax")((rows,), (self._threads,), (logits, out, vocabulary))
        return out
