"""Chapter 05's ops and causal attention of one request."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chapters.ch02_embeddings.stage import THREADS
from chapters.ch05_gemm.stage import LinearOps
from tiny_vllm.device.base import Device
from tiny_vllm.device.checks import check_shape, row_stride
from tiny_vllm.types import Array

SOURCE = "ch06_attention/attention.cu"
QUERIES_A_PASS = 64  # a score for each head, query and key: this many queries at a time bound the scratch


class AttentionOps(LinearOps):
    """The ops of chapter 06."""

    def __init__(self, device: Device, config: Any, dtype: Any, gemm: str = "cublas") -> None:
        super().__init__(device, config, dtype, gemm)
        self.scores = device.empty(0, np.float32)

    def reserve(self, num_tokens: int, num_requests: int, max_seq_len: int) -> None:
        """Allocate the scores of one pass: heads * queries * keys float32."""
        super().reserve(num_tokens, num_requests, max_seq_len)
        self._reserve_scores(self.config.num_attention_heads, min(num_tokens, QUERIES_A_PASS), max_seq_len)

    def attend(self, q: Array, k: Array, v: Array, out: Array | None = None, offset: int = 0) -> Array:
        """Causal attention of one request: q (n,Hq*D), k and v (L,Hkv*D), column views -> out (n,Hq*D).

        offset: the position of the first query; query i sees the keys 0 to offset + i. Without keys the rows are zeros.
        """
        check_shape("attend: v", v, k.shape)
        out = self.new(out, *q.shape)
        for first in range(0, q.shape[0], QUERIES_A_PASS):
            rows = slice(first, first + QUERIES_A_PASS)
            self._attend_pass(q[rows], k, v, out[rows], offset + first)
        return out

    def _attend_pass(self, q: Array, k: Array, v: Array, out: Array, offset: int) -> None:
        head_dim, queries, keys = self.config.head_dim, q.shape[0], k.shape[0]
        heads, kv_heads = q.shape[1] // head_dim, k.shape[1] // head_dim
        scores = self._reserve_scores(heads, queries, keys)
        grid, scale = (-(-keys // THREADS), queries, heads), 1 / math.sqrt(head_dim)
        vectors = (q, row_stride(q), k, row_stride(k), scores)
        self.launch(SOURCE, "attention_scores", grid, (THREADS,), *vectors, keys, kv_heads, head_dim, offset, scale)
        self.launch(SOURCE, "softmax_rows", (heads * queries,), (THREADS,), scores, keys)
        weighted = (scores, v, row_stride(v), out)
        self.launch(SOURCE, "weighted_sum", (queries, heads), (head_dim,), *weighted, keys, kv_heads, head_dim)

    def _reserve_scores(self, heads: int, queries: int, keys: int) -> Array:
        """Scratch for (heads, queries, keys) scores; a lesson that never called reserve gets it here."""
        size = heads * queries * keys
        if self.scores.size < size:
            self.scores = self.device.empty(size, np.float32)
        return self.scores[:size]
