"""Chapter 13's ops with attention over the blocks of the cache, and the pool that hands the blocks out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chapters.ch13_online_softmax.stage import OnlineSoftmaxOps
from tiny_vllm.device.base import Device
from tiny_vllm.device.checks import check_shape, row_stride
from tiny_vllm.errors import UserError
from tiny_vllm.types import Array, StepMeta

SOURCE = "ch14_paged_attention/paged_attention.cu"
THREADS = 32  # of paged_attention.cu
KEYS_A_SPLIT, MAX_SPLITS = 256, 8  # a split is worth its merge from about so many keys on


class PagedAttentionOps(OnlineSoftmaxOps):
    """The ops of chapter 14: nothing is gathered any more."""

    def __init__(self, device: Device, config: Any, dtype: Any, gemm: str = "cublas") -> None:
        super().__init__(device, config, dtype, gemm)
        self.states = device.empty(0, np.float32)

    def reserve(self, num_tokens: int, num_requests: int, max_seq_len: int) -> None:
        """Allocate the states of a prefill's tokens or of a decode step's splits, whichever are more."""
        self._reserve_states(max(num_tokens, num_requests * num_splits(1, max_seq_len)))

    def attention(self, q: Array, kv: Array, meta: StepMeta, out: Array | None = None, splits: int = 0) -> Array:
        """Causal attention over the cache: q (T,Hq*D), a column view; kv one layer -> out (T,Hq*D).

        splits: CUDA blocks that share a context; 0: as many as pay. A request of length 0 gives rows of zeros.
        """
        out = self.new(out, *q.shape)
        (tokens, columns), head_dim = q.shape, self.config.head_dim
        (requests, width), (_, kv_heads, _, block_size, _) = meta.block_table.shape, kv.shape
        check_shape("attention: kv", kv, (len(kv), kv_heads, 2, block_size, head_dim))
        heads, splits = columns // head_dim, splits or num_splits(meta.max_query_len, meta.max_seq_len)
        states = self._reserve_states(tokens * splits)
        lengths = (meta.query_start_loc, meta.seq_lens, meta.block_table)
        shape = (requests, width, block_size, kv_heads, 1 / math.sqrt(head_dim))
        grid = (tokens, heads, splits)
        self.launch(SOURCE, "paged_attention", grid, (THREADS,), q, row_stride(q), kv, *lengths, states, *shape)
        self.launch(SOURCE, "merge_splits", (tokens, heads), (THREADS,), states, out, splits)
        return out

    def _reserve_states(self, count: int) -> Array:
        """Scratch for that many states of each head; a lesson that never called reserve gets it here."""
        size = count * self.config.num_attention_heads * (self.config.head_dim + 2)
        if self.states.size < size:
            self.states = self.device.empty(size, np.float32)
        return self.states[:size]


def num_splits(max_query_len: int, max_seq_len: int) -> int:
    """CUDA blocks that share a context: many tokens fill a GPU without."""
    return 1 if max_query_len > 1 else max(1, min(MAX_SPLITS, -(-max_seq_len // KEYS_A_SPLIT)))


class FreeList:
    """The simplest pool of blocks: a stack of those that nobody owns."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size, self.num_blocks = block_size, num_blocks
        self._free = list(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks for one owner. Raises UserError when there are fewer."""
        # EXERCISE-BEGIN 14.4 (about 4 lines): take `count` blocks off the list, or none if there are too few
        if count > self.num_free:
            raise UserError(f"{count} blocks asked for, {self.num_free} of {self.num_blocks} are free; free some first")
        taken = self._free[self.num_free - count :]
        del self._free[self.num_free - count :]
        return taken
        # EXERCISE-END 14.4

    def free(self, blocks: list[int]) -> None:
        """Give blocks back. Raises UserError for one that nobody owns: two owners would share it soon."""
        unowned = set(blocks) & set(self._free)
        if unowned or len(set(blocks)) < len(blocks):
            raise UserError(f"blocks {sorted(unowned) or blocks} are given back twice; each has one owner")
        self._free += blocks
