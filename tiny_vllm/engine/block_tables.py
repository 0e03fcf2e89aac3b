"""Block tables on the device, kept up to date by what changes (chapter 14)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.types import ScheduledRequest


class BlockTables:
    """The table of each request: whole on the host, and on the device in one of num_rows rows of `width` blocks.

    all: (num_rows,width) int32; of_step: the same, for rows in a step's order. kernels/step_inputs.cu writes both.
    A request keeps its row from step to step, so that only its new blocks travel. Rows are a cache: when a step needs
    one more, the oldest that it has no other use for goes, and its request's table travels anew if it comes back. So
    nothing here depends on when requests end; `forget` only frees the host's copy.
    """

    def __init__(self, device: Device, num_rows: int, width: int) -> None:
        self.all, self.of_step = (device.zeros((num_rows, width), np.int32) for _ in range(2))
        self.reset()

    def reset(self) -> None:
        """Forget all requests."""
        self._tables: dict[str, list[int]] = {}
        self._rows: dict[str, int] = {}  # the oldest first
        self._free_rows = list(range(len(self.all)))[::-1]

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._tables.pop(request_id, None)
        if request_id in self._rows:
            self._free_rows.append(self._rows.pop(request_id))

    def update(self, parts: Sequence[ScheduledRequest]) -> tuple[list[int], list[int], list[int]]:
        """Take in a step's new blocks: the row of each of its requests; and what the device does not know yet, places
        in `all` as one array and the blocks that come there.
        """
        self._make_room(parts)
        places: list[int] = []
        blocks: list[int] = []
        for part in parts:
            if not part.new_block_ids and part.request_id in self._rows:
                continue
            first, new = self._take_in(part)
            start = self._rows[part.request_id] * self.all.shape[1] + first
            places += range(start, start + len(new))
            blocks += new
        return [self._rows[part.request_id] for part in parts], places, blocks

    def table(self, request_id: str) -> list[int]:
        """The request's blocks, in order."""
        return self._tables[request_id]

    def _make_room(self, parts: Sequence[ScheduledRequest]) -> None:
        """Free so many rows that each of these requests can have one."""
        num_missing = sum(part.request_id not in self._rows for part in parts) - len(self._free_rows)
        if num_missing > 0:
            needed = {part.request_id for part in parts}
            spare = [request_id for request_id in self._rows if request_id not in needed]
            self._free_rows += [self._rows.pop(request_id) for request_id in spare[:num_missing]]

    def _take_in(self, part: ScheduledRequest) -> tuple[int, list[int]]:
        """What the device does not know of this request's table: from which index on, and the blocks."""
        if part.first_new_block == 0 and part.new_block_ids:
            self._tables[part.request_id] = []
        table = self._tables[part.request_id]
        table[part.first_new_block :] = part.new_block_ids
        if part.request_id in self._rows:
            return part.first_new_block, list(part.new_block_ids)
        self._rows[part.request_id] = self._free_rows.pop()
        return 0, table
