"""From the plan of a step to what the forward takes: token ids, positions, slots, lengths, tables, on the device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.engine.block_tables import BlockTables
from tiny_vllm.engine.int32 import int32_array
from tiny_vllm.types import IN_FLIGHT, Array, ScheduledRequest, StepMeta, StepPlan

FEW_THREADS, MANY_THREADS = 128, 1024  # of a block, by the longest request of a step
KEPT_VIEWS = 256  # steps of other numbers whose views are kept


@dataclass(frozen=True)
class Views:
    """Where a step finds its fields. To make a view takes as long as a launch, and most steps' numbers come again.

    whole: all that is copied in; meta: without the lengths on the host.
    """

    whole: Array
    tokens: Array
    rows: Array
    places: Array
    blocks: Array
    meta: StepMeta

    def of_lengths(self, query_lens: list[int], seq_lens: list[int]) -> StepMeta:
        """What place() works on, and the forward after it."""
        last = self.meta.last and replace(self.meta.last, seq_lens_host=seq_lens)
        return replace(self.meta, query_lens_host=query_lens, seq_lens_host=seq_lens, last=last)


class StepInputs:
    """Lays plans into one int32 array, so that one copy brings a step to the device, block tables as deltas.

    What follows from lengths and tables, the positions and slots of tokens, is computed there. The place of a field
    depends on the numbers of tokens, requests and wanted rows only, so a step of the same numbers finds everything
    where a captured graph looks for it.
    """

    def __init__(
        self, device: Device, max_num_tokens: int, max_num_seqs: int, max_model_len: int, block_size: int
    ) -> None:
        self.device, self.block_size = device, block_size
        width = -(-max_model_len // block_size)
        self.tables = BlockTables(device, max_num_seqs, width)
        self.last_ids = device.zeros((max_num_seqs,), np.int32)  # what the last step drew, in the order of its rows
        self._last_rows: dict[str, int] = {}
        self._library = KernelLibrary(device, np.float32)
        # At the worst every table travels anew: a place and a block for each of its entries
        self._array = device.zeros((max_num_tokens + 6 * max_num_seqs + 1 + 2 * max_num_seqs * width,), np.int32)
        self._one_a_request = device.asarray(np.arange(max_num_seqs + 1, dtype=np.int32))
        self._positions, self._slots = (device.zeros((max_num_tokens,), np.int32) for _ in range(2))
        self._views: dict[tuple[int, ...], Views] = {}  # by the numbers of a step

    def lay_out(
        self,
        plan: StepPlan,
        num_rows: int | None = None,
        row_len: int = 1,
        last_only: bool = False,
        place: bool = True,
    ) -> tuple[Array, StepMeta]:
        """The step's tokens (T,) and its StepMeta, all views of arrays that never move.

        num_rows: pad the step to so many requests. A padded one has row_len tokens and length 0: it attends to nothing
        and its slots are nowhere. Its last token's logits are wanted like those of others.
        last_only: give StepMeta.last, where that spares most rows.
        place: False leaves place() to the caller, who may capture it with the step.
        """
        parts = plan.requests
        padding = 0 if num_rows is None else num_rows - len(parts)
        query_lens = [len(part.token_ids) for part in parts] + [row_len] * padding
        seq_lens = [part.end for part in parts] + [0] * padding
        ends = list(itertools.accumulate(query_lens))
        wanted = [end - 1 for part, end in zip(parts, ends) if part.is_sampled]
        wanted += [end - 1 for end in ends[len(parts) :]]
        rows, places, blocks = self.tables.update(parts)
        rows += [0] * padding
        tokens = self._token_ids(parts)
        tokens += [0] * (row_len * padding)
        last, positions = [], []
        if last_only and 2 * len(ends) <= len(tokens):
            last, positions = [end - 1 for end in ends], [max(length - 1, 0) for length in seq_lens]
        views = self._copy((tokens, [0, *ends], seq_lens, rows, wanted, last, positions, places, blocks))
        self._update_tables(views.places, views.blocks)
        if parts:  # a warm-up between two steps has none, and draws nothing
            self._last_rows = {part.request_id: row for row, part in enumerate(p for p in parts if p.is_sampled)}
        meta = views.of_lengths(query_lens, seq_lens)
        self._newest = views.tokens, views.rows, meta
        if place:
            self.place()
        return views.tokens, meta

    def place(self) -> None:
        """Launch what the device alone can find out about the step last laid out: tables, places, ids in flight."""
        tokens, rows, meta = self._newest
        lengths = (meta.query_start_loc, meta.seq_lens, rows)
        places = (meta.block_table, meta.positions, meta.slot_mapping)
        args = (tokens, self.last_ids, *lengths, self.tables.all, *places, meta.block_table.shape[1], self.block_size)
        threads = MANY_THREADS if meta.max_query_len > FEW_THREADS else FEW_THREADS
        self._library.kernel("step_inputs.cu", "place_tokens")((len(rows),), (threads,), args)

    def _update_tables(self, places: Array, blocks: Array) -> None:
        if count := len(places):
            args = (self.tables.all, places, blocks, count)
            grid = (-(-count // FEW_THREADS),)
            self._library.kernel("step_inputs.cu", "update_block_tables")(grid, (FEW_THREADS,), args)

    def _token_ids(self, parts: Sequence[ScheduledRequest]) -> list[int]:
        """Ids of the step's tokens; -1 - r for the one that the r-th drawing request of the last step gets."""
        tokens: list[int] = []
        for part in parts:
            tokens += part.token_ids
            if tokens[-1] == IN_FLIGHT:
                tokens[-1] = -1 - self._last_rows[part.request_id]
        return tokens

    def _copy(self, fields: Sequence[list[int]]) -> Views:
        """Bring the fields to the device, one behind the other; the first list takes in the others."""
        views = self._find_views(tuple(map(len, fields)))
        everything, *others = fields
        for field in others:
            everything += field
        self.device.copy_in(views.whole, int32_array(everything))
        return views

    def _find_views(self, counts: tuple[int, ...]) -> Views:
        """Those of an earlier step, if it had fields of the same lengths."""
        found = self._views.get(counts)
        if found is None:
            if len(self._views) == KEPT_VIEWS:
                self._views.clear()
            found = self._views[counts] = self._make_views(counts)
        return found

    def _make_views(self, counts: tuple[int, ...]) -> Views:
        ends = list(itertools.accumulate(counts))
        fields = [self._array[end - count : end] for count, end in zip(counts, ends)]
        tokens, starts, lengths, rows, wanted, last, last_positions, places, blocks = fields
        num_tokens, num_requests = len(tokens), len(rows)
        positions, slots = self._positions[:num_tokens], self._slots[:num_tokens]
        table = self.tables.of_step[:num_requests]
        meta = StepMeta(positions, slots, starts, lengths, table, wanted, [], [])
        if len(last):  # the last row of each request as a step of one token a request
            ones, few_slots = self._one_a_request[: num_requests + 1], slots[:num_requests]
            meta.last = StepMeta(last_positions, few_slots, ones, lengths, table, last, [1] * num_requests, [])
        return Views(self._array[: ends[-1]], tokens, rows, places, blocks, meta)
