"""A model at work without an engine: a cache with blocks in no order, and steps that a test spells out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.ops.cases import integers, step_meta
from tiny_vllm.device.base import Device
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.llama import Llama
from tiny_vllm.models.rope import rope_table
from tiny_vllm.models.weights import LlamaWeights
from tiny_vllm.ops.base import Ops
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.types import KVCache, StepMeta

BLOCK_SIZE = 16


def prompts(folder: Path) -> list[dict[str, Any]]:
    """The golden prompts of a tiny checkpoint."""
    return json.loads((folder / "golden.json").read_text(encoding="utf-8"))["prompts"]


class Running:
    """Requests that are computed together, step by step. Blocks that nobody owns hold NaN."""

    def __init__(
        self, device: Device, config: ModelConfig, weights: LlamaWeights, ops: Ops, lengths: list[int], seed: int = 0
    ) -> None:
        """lengths: how long each request may become."""
        self.device, self.ops, self.model = device, ops, Llama(config, weights, ops)
        counts = [-(-length // BLOCK_SIZE) for length in lengths]
        free = np.random.default_rng(seed).permutation(sum(counts) + 2).tolist()
        self.tables = [free[sum(counts[:r]) : sum(counts[: r + 1])] for r in range(len(lengths))]
        shape = (len(free), config.num_key_value_heads, 2, BLOCK_SIZE, config.head_dim)
        layers = [device.asarray(np.full(shape, np.nan).astype(ops.dtype)) for _ in range(config.num_hidden_layers)]
        self.cache = KVCache(layers, BLOCK_SIZE)
        self.computed = [0] * len(lengths)
        tokens = sum(lengths)
        ops.reserve(tokens, len(lengths), max(lengths))
        table = device.asarray(rope_table(config.rope, config.head_dim, max(lengths)))
        self.buffers = Buffers.allocate(device, config, ops.dtype, tokens, tokens, table)

    def plan(self, new: list[list[int]], every_row: bool = False) -> tuple[Any, StepMeta, Buffers]:
        """What a step of these new tokens a request needs: tokens, meta, buffers."""
        count = sum(map(len, new))
        after = [n + len(ids) for n, ids in zip(self.computed, new, strict=True)]
        rows = list(range(count)) if every_row else None
        meta = step_meta(self.device, [len(ids) for ids in new], after, self.tables, BLOCK_SIZE, rows)
        self.computed = after
        buffers = self.buffers.take(count, len(meta.logits_indices))
        return integers(self.device, [i for ids in new for i in ids]), meta, buffers

    def step(self, new: list[list[int]], every_row: bool = False) -> np.ndarray:
        """Logits after each request's last new token (R,V), or after every new token (T,V)."""
        tokens, meta, buffers = self.plan(new, every_row)
        with self.device.no_allocation():
            logits = self.model.forward(tokens, self.cache, meta, buffers)
        return self.device.to_host(logits)

    def greedy(self, first_logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """From the prompts' last logits on: tokens (R,count) and their margin over the second best (R,count)."""
        logits, tokens, margins = first_logits, [], []
        while True:
            best = np.sort(logits, axis=-1)[:, -2:]
            tokens.append(logits.argmax(axis=-1))
            margins.append(best[:, 1] - best[:, 0])
            if len(tokens) == count:
                return np.stack(tokens, axis=1), np.stack(margins, axis=1)
            logits = self.step([[int(t)] for t in tokens[-1]])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
