"""From the plan of a step to what the forward takes: token ids, positions, slots, lengths, tables, on the device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.engine.block_tables import THREADS, BlockTables
from tiny_vllm.types import IN_FLIGHT, Array, ScheduledRequest, StepMeta, StepPlan

ROW_FIELDS = 3  # a token has an id, a position and a slot
NOWHERE = -1  # the slot of a padded row


class StepInputs:
    """Lays plans into one int32 array, so that one copy brings a step to the device; block tables follow as deltas.

    The place of a field depends on the numbers of tokens, requests and wanted rows only, so a step of the same numbers
    finds everything where a captured graph looks for it.
    """

    def __init__(
        self, device: Device, max_num_tokens: int, max_num_seqs: int, max_model_len: int, block_size: int
    ) -> None:
        self.device, self.block_size = device, block_size
        self.tables = BlockTables(device, max_num_seqs, -(-max_model_len // block_size))
        self.last_ids = device.zeros((max_num_seqs,), np.int32)  # what the last step drew, in the order of its rows
        self._last_rows: dict[str, int] = {}
        self._fill = KernelLibrary(device, np.float32)
        size = ROW_FIELDS * max_num_tokens + 4 * max_num_seqs + 1
        self._host, self._array = np.zeros(size, np.int32), device.zeros((size,), np.int32)

    def lay_out(self, plan: StepPlan, num_rows: int | None = None) -> tuple[Array, StepMeta]:
        """The step's tokens (T,) and its StepMeta, all views of arrays that never move.

        num_rows: pad a step of one token a request to so many. A padded row is a request of its own, with one token
        and length 0: it attends to nothing and its slot is nowhere.
        """
        parts = plan.requests
        padding = 0 if num_rows is None else num_rows - len(parts)
        query_lens = [len(part.token_ids) for part in parts] + [1] * padding
        seq_lens = [part.end for part in parts] + [0] * padding
        ends = list(itertools.accumulate(query_lens))
        wanted = [end - 1 for part, end in zip(parts, ends) if part.is_sampled]
        wanted += range(len(parts), len(parts) + padding)  # only steps of one token a request are padded
        rows = self.tables.update(parts) + [0] * padding
        tokens, positions, slots = self._token_fields(parts, padding)
        fields = (tokens, positions, slots, [0, *ends], seq_lens, rows, wanted)
        on_device = self._copy(fields)
        self._last_rows = {part.request_id: row for row, part in enumerate(p for p in parts if p.is_sampled)}
        return self._meta(on_device, query_lens, seq_lens)

    def _meta(self, fields: list[Array], query_lens: list[int], seq_lens: list[int]) -> tuple[Array, StepMeta]:
        tokens, positions, slots, starts, lengths, rows, wanted = fields
        count = len(tokens)
        self._fill.kernel("step_inputs.cu", "fill_in_flight")(
            (-(-count // THREADS),), (THREADS,), (tokens, self.last_ids, count)
        )
        table = self.tables.gather(rows, lengths, self.block_size)
        return tokens, StepMeta(positions, slots, starts, lengths, table, wanted, query_lens, seq_lens)

    def _token_fields(self, parts: Sequence[ScheduledRequest], padding: int) -> tuple[list[int], list[int], list[int]]:
        """Ids, positions and slots of the step's tokens."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        size = self.block_size
        for part in parts:
            tokens += part.token_ids
            if part.token_ids[-1] == IN_FLIGHT:
                tokens[-1] = -1 - self._last_rows[part.request_id]
            positions += range(part.start, part.end)
            table = self.tables.table(part.request_id)
            slots += [table[p // size] * size + p % size for p in range(part.start, part.end)]
        return tokens + [0] * padding, positions + [0] * padding, slots + [NOWHERE] * padding

    def _copy(self, fields: Sequence[Sequence[int]]) -> list[Array]:
        """Bring the fields to the device, one behind the other; a view of each."""
        ends = list(itertools.accumulate(map(len, fields)))
        host = self._host[: ends[-1]]
        for field, end in zip(fields, ends):
            host[end - len(field) : end] = field
        self.device.copy_in(self._array[: ends[-1]], host)
        return [self._array[end - len(field) : end] for field, end in zip(fields, ends)]
