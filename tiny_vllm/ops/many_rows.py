"""What steps of more than a few rows do in one kernel: launchers of rope_kv.cu and put_rows.cu."""

from __future__ import annotations

from typing import Any

from tiny_vllm.device.base import Device
from tiny_vllm.device.checks import check_shape, row_stride
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.device.source import as_dtype
from tiny_vllm.ops.base import Ops
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.types import Array, StepMeta

VECTOR_BYTES = 16  # of vectors.cuh
THREADS = 256
FEW, FULL = 96, 4096  # threads of rope_kv's block, where so many rows fill the GPU anyway


class ManyRows:
    """Kernels for a model's shape; each says where it holds."""

    def __init__(self, device: Device, config: Any, dtype: Any) -> None:
        self._config = config
        self._library = KernelLibrary(device, dtype, config.head_dim)
        self._vector = VECTOR_BYTES // as_dtype(dtype).itemsize  # a token is divided into items of two vectors

    @property
    def turns(self) -> bool:
        """Whether rope_kv holds: halves of heads are whole vectors."""
        return bool(self._config.head_dim % (2 * self._vector) == 0)

    def rope_kv(
        self, qkv: Array, kv: Array, meta: StepMeta, rope_table: Array, q: bool = True, kv_too: bool = True
    ) -> None:
        """RoPE and cache write of qkv (T,(Hq+2Hkv)*D), a column view: q turned in place, k and v into the cache.

        q, kv_too: False for a product that has no q, or no k and v.
        """
        heads = self._config.num_attention_heads if q else 0
        kv_heads = self._config.num_key_value_heads if kv_too else 0
        rows, (_, _, _, block_size, dim) = len(qkv), kv.shape
        check_shape("attn_in: qkv", qkv, (rows, (heads + 2 * kv_heads) * dim))
        check_shape("attn_in: cache", kv, (len(kv), self._config.num_key_value_heads, 2, block_size, dim))
        check_shape("attn_in: positions", meta.positions, (rows,))
        check_shape("attn_in: slots", meta.slot_mapping, (rows,))
        check_shape("attn_in: rope_table", rope_table, (len(rope_table), dim))
        arrays = (qkv, meta.positions, meta.slot_mapping, rope_table, kv)
        items = (heads + 2 * kv_heads) * dim // (2 * self._vector)
        threads = min(-(-items // 32) * 32, FEW if rows >= FULL else THREADS)
        self._launch("rope_kv", rows, threads, *arrays, row_stride(qkv), heads, kv_heads, block_size)

    def last_layer(self, ops: Ops, x: Array, layer: Any, kv: Array, meta: StepMeta, last: StepMeta, b: Buffers) -> None:
        """Keys and values of all rows of x; everything else of the last rows."""
        q, eps, few, rows = b.q_columns, self._config.rms_norm_eps, b.few(len(last.logits_indices)), last.logits_indices
        ops.rms_norm(x, layer.input_norm, eps, out=b.normed)
        ops.linear(b.normed, layer.qkv[q:], out=b.qkv[:, q:])
        self.rope_kv(b.qkv[:, q:], kv, meta, b.rope_table, q=False)
        ops.take_rows(x, rows, out=few.hidden)
        ops.rms_norm(few.hidden, layer.input_norm, eps, out=few.normed)
        ops.linear(few.normed, layer.qkv[:q], out=few.q)
        self.rope_kv(few.q, kv, last, b.rope_table, kv_too=False)
        ops.after_attn_in(few.hidden, layer, kv, last, few)
        self.put_rows(few.hidden, rows, x)

    def put_rows(self, few: Array, rows: Array, x: Array) -> None:
        """few (R,H) to the rows of x (T,H)."""
        check_shape("layers: few_hidden", few, (len(rows), x.shape[1]))
        self._launch("put_rows", len(rows), THREADS, few, rows, x, x.shape[1])

    def _launch(self, name: str, blocks: int, threads: int, *args: Any) -> None:
        if blocks:
            self._library.kernel(f"{name}.cu", name)((blocks,), (threads,), args)
