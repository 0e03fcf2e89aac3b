"""Chapter 08's ops and a KV cache: a step computes new tokens only, and reads the keys and values of the old ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from chapters.ch02_embeddings.stage import THREADS
from chapters.ch08_first_token.stage import FirstTokenOps, allocate_buffers, one_request, requests
from tiny_vllm.device.base import Device
from tiny_vllm.device.checks import check_shape, row_stride
from tiny_vllm.models.llama import Llama
from tiny_vllm.types import Array, KVCache, StepMeta


class KVCacheOps(FirstTokenOps):
    """The ops of chapter 09: what decode reuses stays in a cache of blocks."""

    graph_safe: ClassVar[bool] = False  # one launch or more for each request: another batch, other launches

    def __init__(self, device: Device, config: Any, dtype: Any, gemm: str = "cublas") -> None:
        super().__init__(device, config, dtype, gemm)
        self.gathered = device.empty((2, 0, 0), dtype)

    def reserve(self, num_tokens: int, num_requests: int, max_seq_len: int) -> None:
        """Allocate what one request's gathered keys and values take, and chapter 06's scores."""
        super().reserve(num_tokens, num_requests, max_seq_len)
        self._reserve_gathered(max_seq_len, self.config.num_key_value_heads * self.config.head_dim)

    def write_kv(self, k: Array, v: Array, kv: Array, slots: Array) -> None:
        """k and v (T,Hkv*D), column views, into kv [blocks,Hkv,2,B,D] at slots (T,) int32; -1 is skipped."""
        rows, (_, kv_heads, _, block_size, head_dim) = k.shape[0], kv.shape
        check_shape("write_kv: k", k, (rows, kv_heads * head_dim))
        check_shape("write_kv: v", v, (rows, kv_heads * head_dim))
        check_shape("write_kv: slots", slots, (rows,))
        args = (k, row_stride(k), v, row_stride(v), kv, slots, kv_heads, block_size, head_dim)
        self.launch("ch09_kv_cache/write_kv.cu", "write_kv", (rows,), (THREADS,), *args)

    def gather(self, kv: Array, block_table: Array, seq_len: int) -> tuple[Array, Array]:
        """Keys and values of positions 0 to seq_len, each (seq_len,Hkv*D), out of the blocks of one request."""
        _, kv_heads, _, block_size, head_dim = kv.shape
        k, v = self._reserve_gathered(seq_len, kv_heads * head_dim)
        args = (kv, block_table, k, v, kv_heads, block_size, head_dim)
        self.launch("ch09_kv_cache/gather_kv.cu", "gather_kv", (seq_len,), (THREADS,), *args)
        return k, v

    def attention(self, q: Array, kv: Array, meta: StepMeta, out: Array | None = None) -> Array:
        """Causal attention over the cache, request by request: q (T,Hq*D) -> out (T,Hq*D); length 0 gives zeros."""
        out = self.new(out, *q.shape)
        for index, (rows, seq_len) in enumerate(requests(meta)):
            k, v = self.gather(kv, meta.block_table[index], seq_len)
            self.attend(q[rows], k, v, out[rows], offset=seq_len - (rows.stop - rows.start))
        return out

    def _reserve_gathered(self, seq_len: int, columns: int) -> tuple[Array, Array]:
        """Scratch for keys and values (seq_len, columns) each."""
        if self.gathered.shape[1] < seq_len or self.gathered.shape[2] != columns:
            self.gathered = self.device.empty((2, seq_len, columns), self.dtype)
        return self.gathered[0, :seq_len], self.gathered[1, :seq_len]


def allocate_cache(model: Llama, max_seq_len: int) -> KVCache:
    """Room for one request: a cache of a single block of max_seq_len tokens a layer."""
    config, ops = model.config, model.ops
    shape = (1, config.num_key_value_heads, 2, max_seq_len, config.head_dim)
    return KVCache([ops.device.zeros(shape, ops.dtype) for _ in range(config.num_hidden_layers)], max_seq_len)


def generate(model: Llama, ids: list[int], max_tokens: int) -> Iterator[int]:
    """The likeliest next tokens, max_tokens of them; each token is computed once. model.ops: KVCacheOps."""
    ops, total = model.ops, len(ids) + max_tokens
    assert isinstance(ops, KVCacheOps)
    buffers, cache = allocate_buffers(model, len(ids), total), allocate_cache(model, total)
    computed, new = 0, list(ids)
    for _ in range(max_tokens):
        tokens, meta = ops.device.asarray(np.array(new, np.int32)), one_request(ops.device, computed, len(new))
        logits = model.forward(tokens, cache, meta, buffers.take(len(new), 1))
        computed, new = computed + len(new), [int(ops.device.to_host(ops.argmax(logits))[0])]
        yield new[0]
