"""Chapter 09's ops with attention in one pass: the scores' scratch is gone."""

from __future__ import annotations

import math
from typing import Any, Literal

from chapters.ch09_kv_cache.stage import KVCacheOps
from tiny_vllm.device.base import Device, Dim
from tiny_vllm.device.checks import check_shape, row_stride
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.types import Array

SOURCE = "ch13_online_softmax/online_softmax.cu"
LANES, QUERIES = 16, 16  # of online_softmax.cu


class OnlineSoftmaxOps(KVCacheOps):
    """The ops of chapter 13. From here on some kernels are compiled for one head size."""

    def __init__(self, device: Device, config: Any, dtype: Any, gemm: str = "cublas") -> None:
        super().__init__(device, config, dtype, gemm)
        self._library = KernelLibrary(device, dtype, config.head_dim)

    def reserve(self, num_tokens: int, num_requests: int, max_seq_len: int) -> None:
        """Allocate what one request's gathered keys and values take: nothing that grows with queries times keys."""
        self._reserve_gathered(max_seq_len, self.config.num_key_value_heads * self.config.head_dim)

    def attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        out: Array | None = None,
        offset: int = 0,
        rung: Literal["one_pass", "flash_attention"] | None = None,
    ) -> Array:
        """Causal attention of one request: q (n,Hq*D), k and v (L,Hkv*D), column views -> out (n,Hq*D).

        offset: the position of the first query; query i sees the keys 0 to offset + i. Without keys the rows are zeros.
        rung: which kernel; left open, one_pass for a single query, which has nobody to share a tile with.
        """
        check_shape("attend: v", v, k.shape)
        out = self.new(out, *q.shape)
        head_dim, queries = self.config.head_dim, q.shape[0]
        heads, kv_heads = q.shape[1] // head_dim, k.shape[1] // head_dim
        rows = (q, row_stride(q), k, row_stride(k), v, row_stride(v), out)
        shape = (k.shape[0], kv_heads, offset, 1 / math.sqrt(head_dim))
        if rung == "one_pass" or (rung is None and queries == 1):
            self.launch(SOURCE, "one_pass", (queries, heads), (LANES,), *rows, *shape)
        else:
            grid: Dim = (-(-queries // QUERIES), heads)
            self.launch(SOURCE, "flash_attention", grid, (LANES, QUERIES), *rows, queries, *shape)
        return out
