"""Block tables on the device, kept up to date by what changes (chapter 14)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from tiny_vllm.device.base import Device, Kernel
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.types import Array, ScheduledRequest

THREADS = 128
UPDATES = 4096  # entries that travel in one copy


class BlockTables:
    """The table of each request: whole on the host, and on the device in one of num_rows rows of `width` blocks.

    A request keeps its row from step to step, so that only its new blocks travel. Rows are a cache: when a step needs
    one more, the oldest that it has no other use for goes, and its request's table travels anew if it comes back. So
    nothing here depends on when requests end; `forget` only frees the host's copy.
    """

    def __init__(self, device: Device, num_rows: int, width: int) -> None:
        self._device, self._library = device, KernelLibrary(device, np.float32)
        self._all = device.zeros((num_rows, width), np.int32)
        self._of_step = device.zeros((num_rows, width), np.int32)
        self._updates = device.zeros((2 * UPDATES,), np.int32)
        self.reset()

    def reset(self) -> None:
        """Forget all requests."""
        self._tables: dict[str, list[int]] = {}
        self._rows: dict[str, int] = {}  # the oldest first
        self._free_rows = list(range(len(self._all)))[::-1]

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._tables.pop(request_id, None)
        if request_id in self._rows:
            self._free_rows.append(self._rows.pop(request_id))

    def update(self, parts: Sequence[ScheduledRequest]) -> list[int]:
        """Take in a step's new blocks, on host and device; the row of each of its requests."""
        self._make_room(parts)
        places: list[int] = []
        blocks: list[int] = []
        for part in parts:
            if not part.new_block_ids and part.request_id in self._rows:
                continue
            first, new = self._take_in(part)
            start = self._rows[part.request_id] * self._all.shape[1] + first
            places += range(start, start + len(new))
            blocks += new
        for at in range(0, len(places), UPDATES):
            self._send(places[at : at + UPDATES], blocks[at : at + UPDATES])
        return [self._rows[part.request_id] for part in parts]

    def table(self, request_id: str) -> list[int]:
        """The request's blocks, in order."""
        return self._tables[request_id]

    def gather(self, rows: Array, seq_lens: Array, block_size: int) -> Array:
        """Tables (R,width) in a step's order: of the requests in `rows` (R,), up to the blocks of seq_lens (R,)."""
        tables = self._of_step[: len(rows)]
        args = (self._all, rows, seq_lens, tables, tables.shape[1], block_size)
        self._kernel("gather_block_tables")((len(rows),), (THREADS,), args)
        return tables

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

    def _send(self, places: list[int], blocks: list[int]) -> None:
        count = len(places)
        updates = self._updates[: 2 * count]
        self._device.copy_in(updates, np.frombuffer(array("i", places + blocks), np.int32))
        args = (self._all.reshape(-1), updates[:count], updates[count:], count)
        self._kernel("update_block_tables")((-(-count // THREADS),), (THREADS,), args)

    def _kernel(self, name: str) -> Kernel:
        return self._library.kernel("step_inputs.cu", name)
