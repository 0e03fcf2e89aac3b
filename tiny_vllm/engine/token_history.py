"""The tokens of requests with penalties, on the device: a copy of what each Request says, kept up token by token."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.types import Array, Request


@dataclass
class _Slot:
    """A row of the history: whose it is, and how many of its tokens are there."""

    row: int
    request: Request | None = None
    num_known: int = 0


class TokenHistory:
    """Rows of an array (num_slots, max_model_len) int32, given to whoever was used last.

    Nothing is lost when a request loses its row, is preempted or comes back: the Request has all its tokens, and what
    is missing is copied again. In a steady state nothing is: each step's ROW brings its newest token.
    """

    def __init__(self, device: Device, array: Array) -> None:
        self._device, self._array = device, array
        self.reset()

    def reset(self) -> None:
        """All rows are free."""
        # Least recently used first. A slot keeps its request alive, so no other one has the same id()
        self._slots = OrderedDict((-1 - row, _Slot(row)) for row in range(len(self._array)))

    def place(self, requests: list[Request]) -> list[int]:
        """A row for each request; it holds the request's known tokens but the newest, which the ROW brings."""
        for request in requests:
            if id(request) in self._slots:
                self._slots.move_to_end(id(request))
        return [self._fill(request) for request in requests]

    def _fill(self, request: Request) -> int:
        slot = self._slots.get(id(request))
        if slot is None:
            _, slot = self._slots.popitem(last=False)
            slot.request, slot.num_known = request, 0
            self._slots[id(request)] = slot
        start, end = slot.num_known, request.num_tokens
        if start < end - 1:
            tokens = np.array(request.tokens_between(start, end), np.int32)
            self._device.copy_in(self._array[slot.row, start:end], tokens)
        slot.num_known = end
        return slot.row
