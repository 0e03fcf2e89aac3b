"""Chapter 03's ops and RoPE."""

from __future__ import annotations

from chapters.ch02_embeddings.stage import THREADS
from chapters.ch03_rms_norm.stage import RMSNormOps
from tiny_vllm.device.checks import check_shape, row_stride
from tiny_vllm.types import Array

SOURCE = "ch04_rope/rope.cu"


class RopeOps(RMSNormOps):
    """The ops of chapter 04."""

    def rope(self, q: Array, k: Array, positions: Array, table: Array) -> None:
        """Rotate pairs (i, i + D/2) of each head of q (T,Hq*D) and k (T,Hkv*D) in place; table (P,D) float32.

        q and k may be columns of a wider array, whose rows lie row_stride(q) elements apart.
        """
        rows, head_dim = q.shape[0], table.shape[1]
        heads, kv_heads = q.shape[1] // head_dim, k.shape[1] // head_dim
        check_shape("rope: q", q, (rows, heads * head_dim))
        check_shape("rope: k", k, (rows, kv_heads * head_dim))
        check_shape("rope: positions", positions, (rows,))
        args = (q, row_stride(q), k, row_stride(k), positions, table, heads, kv_heads, head_dim)
        self.launch(SOURCE, "rope", (rows,), (THREADS,), *args)
