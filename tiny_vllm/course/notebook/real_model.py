"""The real model in float32 and NumPy: the judge of every op that a lesson puts into it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tiny_vllm.device import get_device
from tiny_vllm.device.base import Device
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.hub import BUILT_IN, resolve_model
from tiny_vllm.models.llama import Llama
from tiny_vllm.models.rope import rope_table
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.models.weights import LlamaWeights, load_weights
from tiny_vllm.ops.base import Ops
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.reference.ops import ReferenceOps
from tiny_vllm.types import KVCache, StepMeta

TOLERANCE = 1e-3  # of a logit, absolute: a stage is right when the model's logits agree this closely


@dataclass(frozen=True)
class RealModel:
    """A loaded model. ops: the reference, NumPy; device: the emulator, whose arrays are NumPy's."""

    config: ModelConfig
    weights: LlamaWeights
    tokenizer: Tokenizer
    device: Device
    ops: Ops

    def logits(self, ids: list[int], ops: Ops | None = None) -> np.ndarray:
        """The logits (V,) float32 after the last of the tokens."""
        return next(self.steps(ids, 1, ops))

    def generate(self, ids: list[int], count: int, ops: Ops | None = None) -> list[int]:
        """The likeliest next `count` tokens, each computed once: a KV cache keeps the old ones."""
        return [int(logits.argmax()) for logits in self.steps(ids, count, ops)]

    def text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids)

    def steps(self, ids: list[int], count: int, ops: Ops | None = None) -> Iterator[np.ndarray]:
        """Logits (V,) after the prompt, then after each token that they choose: `count` of them."""
        model, total = Llama(self.config, self.weights, ops or self.ops), len(ids) + count
        table = rope_table(self.config.rope, self.config.head_dim, total)
        model.ops.reserve(len(ids), 1, total)
        buffers = Buffers.allocate(self.device, self.config, np.float32, len(ids), 1, table)
        shape = (1, self.config.num_key_value_heads, 2, total, self.config.head_dim)
        cache = KVCache([np.zeros(shape, np.float32) for _ in range(self.config.num_hidden_layers)], total)
        computed, new = 0, list(ids)
        for _ in range(count):
            step = _one_request(computed, len(new))
            logits = model.forward(np.array(new, np.int32), cache, step, buffers.take(len(new), 1))[0].copy()
            yield logits
            computed, new = computed + len(new), [int(logits.argmax())]


@lru_cache(maxsize=1)
def load_model(name: str = BUILT_IN) -> RealModel:
    """The model of that name, kept for the session. UserError when it cannot be had."""
    device, folder = get_device("emulator"), Path(resolve_model(name))
    config = ModelConfig.from_folder(folder)
    weights = load_weights(folder, config, device, np.float32)
    ops = ReferenceOps(device, config, np.float32)
    return RealModel(config, weights, Tokenizer.from_folder(folder), device, ops)


def replaced(ops: Ops, **primitives: Callable[..., Any]) -> Ops:
    """ops with primitives that take NumPy arrays and return new ones, as mine() gives them, instead of its own."""
    return ops.replace(**{name: _in_place(name, primitive) for name, primitive in primitives.items()})


def _in_place(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A primitive with ops/base.py's signature: results go into out, or over the first arguments where it has none."""
    has_out = "out" in inspect.signature(getattr(Ops, name)).parameters

    def primitive(*args: Any, out: Any = None, **options: Any) -> Any:
        results = function(*args, **options)
        results = results if isinstance(results, tuple) else (results,)
        if has_out and out is None:
            return results[0]
        targets = (out,) if has_out else args
        for target, result in zip(targets, results):
            target[...] = result
        return out

    return primitive


def _one_request(start: int, count: int) -> StepMeta:
    """The step that computes tokens start to start + count of the only request; its cache is the one block 0."""
    positions = np.arange(start, start + count, dtype=np.int32)
    lists = [0, count], [start + count], [[0]], [count - 1]
    loc, seq_lens, table, last = (np.array(values, np.int32) for values in lists)
    return StepMeta(positions, positions, loc, seq_lens, table, last, [count], [start + count])
