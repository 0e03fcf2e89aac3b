"""The Llama forward: token ids to logits, written once against Ops."""

from __future__ import annotations

from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.weights import LlamaWeights
from tiny_vllm.ops.base import Ops
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.types import Array, KVCache, StepMeta


class Llama:
    """A model: its shape, its weights and the operations that it runs on (Llama, Touvron et al., 2023)."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights, ops: Ops) -> None:
        self.config, self.weights, self.ops = config, weights, ops

    def forward(self, tokens: Array, cache: KVCache, meta: StepMeta, buffers: Buffers) -> Array:
        """tokens (T,) int32, on the device -> logits (L,V) float32 of the rows meta.logits_indices.

        buffers: exactly T and L rows, Buffers.take(T, L). Keys and values of the T tokens are left in the cache;
        the logits lie in buffers.logits, until the next step.
        """
        x = self.ops.embed(tokens, self.weights.embed, out=buffers.hidden)
        self.ops.layers(x, self.weights, cache, meta, buffers)
        return self.ops.head(x, self.weights, meta, buffers)
