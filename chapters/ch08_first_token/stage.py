"""Chapter 07's ops, all layers and the head: the first token, and the next ones the slow way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from chapters.ch02_embeddings.stage import THREADS
from chapters.ch07_layer.stage import LayerOps
from tiny_vllm.device.base import Device
from tiny_vllm.device.checks import check_shape
from tiny_vllm.errors import UserError
from tiny_vllm.models.llama import Llama
from tiny_vllm.models.rope import rope_table
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.types import Array, KVCache, StepMeta


class FirstTokenOps(LayerOps):
    """The ops of chapter 08: complete, but without a cache, so every step computes a request from its start."""

    def __init__(self, device: Device, config: Any, dtype: Any, gemm: str = "cublas") -> None:
        super().__init__(device, config, dtype, gemm)
        self.step_kv: tuple[Array, Array] | None = None

    def take_rows(self, x: Array, rows: Array, out: Array | None = None) -> Array:
        """x (T,H), rows (R,) int32 -> out (R,H)."""
        count, hidden = rows.shape[0], x.shape[1]
        out = self.new(out, count, hidden)
        self.launch("ch08_first_token/take_rows.cu", "take_rows", (count,), (THREADS,), x, rows, out, hidden)
        return out

    def argmax(self, logits: Array, out: Array | None = None) -> Array:
        """The best id of each row, the lowest in a tie: logits (R,V) float32 -> out (R,) int32."""
        rows, vocab_size = logits.shape
        out = self.device.empty(rows, np.int32) if out is None else out
        check_shape("argmax: out", out, (rows,))
        self.launch("ch08_first_token/argmax.cu", "argmax", (rows,), (THREADS,), logits, out, vocab_size)
        return out

    def write_kv(self, k: Array, v: Array, kv: Array, slots: Array) -> None:
        """There is no cache yet: remember where this step's keys and values are, for the attention that follows."""
        self.step_kv = k, v

    def attention(self, q: Array, kv: Array, meta: StepMeta, out: Array | None = None) -> Array:
        """Causal attention of each request over this step's own keys and values -> out (T,Hq*D)."""
        assert self.step_kv is not None, "write_kv comes before attention"
        out = self.new(out, *q.shape)
        k, v = self.step_kv
        for rows, seq_len in requests(meta):
            count = rows.stop - rows.start
            if seq_len not in (0, count):
                raise UserError(
                    f"a request has {seq_len} tokens and this step computes {count}; chapter 08 has no cache: "
                    "give it whole requests, or use chapter 09"
                )
            keys = slice(rows.start, rows.start + seq_len)
            self.attend(q[rows], k[keys], v[keys], out[rows])
        return out


def requests(meta: StepMeta) -> Iterator[tuple[slice, int]]:
    """For each request of a step its rows and how many keys it attends to."""
    start = 0
    for query_len, seq_len in zip(meta.query_lens_host, meta.seq_lens_host, strict=True):
        yield slice(start, start + query_len), seq_len
        start += query_len


def one_request(device: Device, start: int, count: int) -> StepMeta:
    """The step that computes tokens start to start + count of the only request; its cache is the one block 0."""
    positions = np.arange(start, start + count, dtype=np.int32)
    lists = [0, count], [start + count], [[0]], [count - 1]
    loc, seq_lens, block_table, last = (device.asarray(np.array(values, np.int32)) for values in lists)
    on_device = device.asarray(positions)
    return StepMeta(on_device, on_device, loc, seq_lens, block_table, last, [count], [start + count])


def allocate_buffers(model: Llama, num_tokens: int, max_seq_len: int) -> Buffers:
    """Activations for steps of at most num_tokens tokens and one row of logits; the ops' scratch too."""
    ops = model.ops
    table = ops.device.asarray(rope_table(model.config.rope, model.config.head_dim, max_seq_len))
    ops.reserve(num_tokens, 1, max_seq_len)
    return Buffers.allocate(ops.device, model.config, ops.dtype, num_tokens, 1, table)


def generate(model: Llama, ids: list[int], max_tokens: int) -> Iterator[int]:
    """The likeliest next tokens, max_tokens of them, each from the whole text so far. model.ops: FirstTokenOps."""
    ops, total = model.ops, len(ids) + max_tokens
    assert isinstance(ops, FirstTokenOps)
    buffers = allocate_buffers(model, total, total)
    no_cache = KVCache([None] * model.config.num_hidden_layers, block_size=1)
    text = list(ids)
    for _ in range(max_tokens):
        tokens = ops.device.asarray(np.array(text, np.int32))
        logits = model.forward(tokens, no_cache, one_request(ops.device, 0, len(text)), buffers.take(len(text), 1))
        text.append(int(ops.device.to_host(ops.argmax(logits))[0]))
        yield text[-1]
