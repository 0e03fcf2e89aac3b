"""From the plan of a step to what the forward takes: token ids, positions, slots, lengths, tables, on the device."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.engine.block_tables import THREADS, BlockTables
from tiny_vllm.types import IN_FLIGHT, Array, ScheduledRequest, StepMeta, StepPlan


class StepInputs:
    """Lays plans into one int32 array, so that one copy brings a step to the device; block tables follow as deltas.

    What follows from lengths and tables, the positions and slots of tokens, is computed there. The place of a field
    depends on the numbers of tokens, requests and wanted rows only, so a step of the same numbers finds everything
    where a captured graph looks for it.
    """

    def __init__(
        self, device: Device, max_num_tokens: int, max_num_seqs: int, max_model_len: int, block_size: int
    ) -> None:
        self.device, self.block_size = device, block_size
        self.tables = BlockTables(device, max_num_seqs, -(-max_model_len // block_size))
        self.last_ids = device.zeros((max_num_seqs,), np.int32)  # what the last step drew, in the order of its rows
        self._last_rows: dict[str, int] = {}
        self._library = KernelLibrary(device, np.float32)
        self._array = device.zeros((max_num_tokens + 4 * max_num_seqs + 1,), np.int32)
        self._positions, self._slots = (device.zeros((max_num_tokens,), np.int32) for _ in range(2))

    def lay_out(self, plan: StepPlan, num_rows: int | None = None, row_len: int = 1) -> tuple[Array, StepMeta]:
        """The step's tokens (T,) and its StepMeta, all views of arrays that never move.

        num_rows: pad the step to so many requests. A padded one has row_len tokens and length 0: it attends to nothing
        and its slots are nowhere. Its last token's logits are wanted like those of others.
        """
        parts = plan.requests
        padding = 0 if num_rows is None else num_rows - len(parts)
        query_lens = [len(part.token_ids) for part in parts] + [row_len] * padding
        seq_lens = [part.end for part in parts] + [0] * padding
        ends = list(itertools.accumulate(query_lens))
        wanted = [end - 1 for part, end in zip(parts, ends) if part.is_sampled]
        wanted += [end - 1 for end in ends[len(parts) :]]
        rows = self.tables.update(parts) + [0] * padding
        tokens = self._token_ids(parts) + [0] * (row_len * padding)
        on_device = self._copy((tokens, [0, *ends], seq_lens, rows, wanted))
        self._last_rows = {part.request_id: row for row, part in enumerate(p for p in parts if p.is_sampled)}
        return self._place(on_device, query_lens, seq_lens)

    def _token_ids(self, parts: Sequence[ScheduledRequest]) -> list[int]:
        """Ids of the step's tokens; -1 - r for the one that the r-th drawing request of the last step gets."""
        tokens: list[int] = []
        for part in parts:
            tokens += part.token_ids
            if tokens[-1] == IN_FLIGHT:
                tokens[-1] = -1 - self._last_rows[part.request_id]
        return tokens

    def _copy(self, fields: Sequence[list[int]]) -> list[Array]:
        """Bring the fields to the device, one behind the other; a view of each."""
        values = array("i")  # reads a list in a quarter of the time that NumPy takes
        for field in fields:
            values.fromlist(field)
        self.device.copy_in(self._array[: len(values)], np.frombuffer(values, np.int32))
        ends = itertools.accumulate(map(len, fields))
        return [self._array[end - len(field) : end] for field, end in zip(fields, ends)]

    def _place(self, fields: list[Array], query_lens: list[int], seq_lens: list[int]) -> tuple[Array, StepMeta]:
        """Gather the tables, and find the tokens' places in them."""
        tokens, starts, lengths, rows, wanted = fields
        positions, slots = self._positions[: len(tokens)], self._slots[: len(tokens)]
        table = self.tables.gather(rows, lengths, self.block_size)
        places = (tokens, self.last_ids, starts, lengths, table, positions, slots)
        kernel = self._library.kernel("step_inputs.cu", "place_tokens")
        kernel((len(rows),), (THREADS,), (*places, table.shape[1], self.block_size))
        return tokens, StepMeta(positions, slots, starts, lengths, table, wanted, query_lens, seq_lens)
