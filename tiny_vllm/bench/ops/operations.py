"""Every operation of a step at the shapes of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from tiny_vllm.bench.ops.ends import argmax, embed, sampling, take_rows, top_sampling
from tiny_vllm.bench.ops.inputs import Step
from tiny_vllm.bench.ops.layer import attention, linear, rms_norm, rope, silu_mul, write_kv
from tiny_vllm.bench.ops.operation import Make, Operation, Sizes
from tiny_vllm.bench.ops.stages import attn_in, attn_out, mlp_in, mlp_out
from tiny_vllm.bench.ops.stages import head as whole_head
from tiny_vllm.device.source import as_dtype
from tiny_vllm.models.config import ModelConfig


def operations(
    config: ModelConfig, dtype: Any, rows: Iterable[int], context: int, prefill: Iterable[Step]
) -> Iterator[Operation]:
    """All of a step in its order, then its stages; each for every number of rows, attention also for each of `prefill`.

    context: keys of each request of a decode step, the new one included.
    """
    sizes, rows = Sizes(config, as_dtype(dtype).itemsize), list(rows)
    first: tuple[Make, ...] = (embed, rms_norm, *products(sizes, "qkv"), rope, write_kv)
    for make in first:
        yield from (make(sizes, count) for count in rows)
    yield from (attention(sizes, Step(count, 1, context - 1), "attention decode") for count in rows)
    yield from (attention(sizes, step, "attention prefill") for step in prefill)
    mlp: tuple[Make, ...] = (*products(sizes, "o", "gate_up"), silu_mul, *products(sizes, "down"))
    head: tuple[Make, ...] = (take_rows, *products(sizes, "head"), argmax, sampling, top_sampling)
    stages: tuple[Make, ...] = (attn_in, attn_out, mlp_in, mlp_out, whole_head)
    for make in mlp + head + stages:
        yield from (make(sizes, count) for count in rows)


def products(sizes: Sizes, *names: str) -> list[Make]:
    """Products with a model's matrices (N,K); o and down add to the residual stream, the head's logits are float32."""
    hidden, inter = sizes.config.hidden_size, sizes.config.intermediate_size
    matrices: dict[str, dict[str, Any]] = {
        "qkv": {"columns": sizes.q + 2 * sizes.kv, "inner": hidden},
        "o": {"columns": hidden, "inner": sizes.q, "add": True},
        "gate_up": {"columns": 2 * inter, "inner": hidden},
        "down": {"columns": hidden, "inner": inter, "add": True},
        "head": {"columns": sizes.config.vocab_size, "inner": hidden, "is_float": True},
    }
    return [partial(linear, name=f"linear {name}", **matrices[name]) for name in names]
