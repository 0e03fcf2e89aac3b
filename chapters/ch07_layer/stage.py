"""Chapter 06's ops and a whole layer: the residual stream and SwiGLU."""

from __future__ import annotations

from typing import Any

from chapters.ch02_embeddings.stage import THREADS
from chapters.ch06_attention.stage import AttentionOps
from tiny_vllm.device.checks import check_shape
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.types import Array


class LayerOps(AttentionOps):
    """The ops of chapter 07."""

    def add_residual(self, x: Array, branch: Array) -> None:
        """x += branch, both (T,H): what `linear(..., add=True)` does without this kernel's traffic."""
        check_shape("add_residual: branch", branch, x.shape)
        grid = (-(-x.size // THREADS),)
        self.launch("ch07_layer/residual.cu", "add_residual", grid, (THREADS,), x, branch, x.size)

    def silu_mul(self, gate_up: Array, out: Array | None = None) -> Array:
        """silu(gate) * up: gate_up (T,2I), gate first -> out (T,I)."""
        rows, inter = gate_up.shape[0], gate_up.shape[1] // 2
        check_shape("silu_mul: gate_up", gate_up, (rows, 2 * inter))
        out = self.new(out, rows, inter)
        self.launch("ch07_layer/silu_mul.cu", "silu_mul", (rows,), (THREADS,), gate_up, out, inter)
        return out

    def layer(self, x: Array, weights: Any, positions: Array, b: Buffers) -> None:
        """One layer over one whole prompt, on the residual stream x (T,H), in place; weights: a LayerWeights."""
        self.rms_norm(x, weights.input_norm, self.config.rms_norm_eps, out=b.normed)
        self.linear(b.normed, weights.qkv, out=b.qkv)
        self.rope(b.q, b.k, positions, b.rope_table)
        self.attend(b.q, b.k, b.v, out=b.attended)
        self.linear(b.attended, weights.o, out=x, add=True)

        self.rms_norm(x, weights.post_attention_norm, self.config.rms_norm_eps, out=b.normed)
        self.linear(b.normed, weights.gate_up, out=b.gate_up)
        self.silu_mul(b.gate_up, out=b.activated)
        self.linear(b.activated, weights.down, out=x, add=True)
