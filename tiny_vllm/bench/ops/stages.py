"""The stages of a step that a fused kernel may take over, for T rows of a decode step; shapes as in ops/base.py.

Bytes are what a fused stage must move: a set that composes primitives moves more, and shows it.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from tiny_vllm.bench.ops.inputs import Inputs, Step
from tiny_vllm.bench.ops.operation import FLOAT, INT, Operation, Sizes
from tiny_vllm.engine.kv_cache import BLOCK_SIZE
from tiny_vllm.ops.buffers import Buffers


def attn_in(sizes: Sizes, rows: int) -> Operation:
    config, columns = sizes.config, sizes.q + 2 * sizes.kv
    hidden, dim, blocks = config.hidden_size, config.head_dim, -(-rows // BLOCK_SIZE)

    def arrays(inputs: Inputs) -> tuple[Any, ...]:
        kv = inputs.cache(blocks, config.num_key_value_heads, dim, is_output=True)
        meta = replace(inputs.meta(Step(rows, 1)), positions=inputs.ids(rows, rows))
        meta = replace(meta, slot_mapping=inputs.ids(rows, blocks * BLOCK_SIZE))
        weights = inputs.new(hidden), inputs.new(columns, hidden)
        return inputs.new(rows, hidden), *weights, kv, meta, _buffers(sizes, inputs, rows, 0)

    def launch(ops: Any, x: Any, norm: Any, qkv: Any, kv: Any, meta: Any, b: Buffers) -> None:
        ops.attn_in(x, SimpleNamespace(input_norm=norm, qkv=qkv), kv, meta, b)

    numbers = rows * hidden + hidden + columns * hidden + rows * columns  # x, norm, weights; q, k and v
    moved = numbers * sizes.element + rows * (2 * INT + dim * FLOAT)
    flops = 4 * rows * hidden + 2 * rows * columns * hidden + 3 * rows * (sizes.q + sizes.kv)
    return Operation("stage attn_in", rows, f"({rows},{hidden}) x ({columns},{hidden})", moved, flops, arrays, launch)


def attn_out(sizes: Sizes, rows: int) -> Operation:
    hidden, q = sizes.config.hidden_size, sizes.q

    def arrays(inputs: Inputs) -> tuple[Any, ...]:
        attended, weight = inputs.new(rows, q), inputs.new(hidden, q)
        return attended, weight, inputs.out(rows, hidden), _buffers(sizes, inputs, rows, 0)

    def launch(ops: Any, attended: Any, weight: Any, x: Any, b: Buffers) -> None:
        ops.attn_out(attended, x, SimpleNamespace(o=weight), b)

    moved = (rows * q + hidden * q + 2 * rows * hidden) * sizes.element
    shape = f"({rows},{q}) x ({hidden},{q})"
    return Operation("stage attn_out", rows, shape, moved, 2 * rows * hidden * q, arrays, launch)


def mlp_in(sizes: Sizes, rows: int) -> Operation:
    hidden, inter = sizes.config.hidden_size, sizes.config.intermediate_size

    def arrays(inputs: Inputs) -> tuple[Any, ...]:
        b = _buffers(sizes, inputs, rows, 0)
        return inputs.new(rows, hidden), inputs.new(hidden), inputs.new(2 * inter, hidden), b.activated, b

    def launch(ops: Any, x: Any, norm: Any, gate_up: Any, _activated: Any, b: Buffers) -> None:
        ops.mlp_in(x, SimpleNamespace(post_attention_norm=norm, gate_up=gate_up), b)

    moved = (rows * hidden + hidden + 2 * inter * hidden + rows * inter) * sizes.element
    flops = 4 * rows * hidden + 4 * rows * inter * hidden + 4 * rows * inter
    shape = f"({rows},{hidden}) x ({2 * inter},{hidden})"
    return Operation("stage mlp_in", rows, shape, moved, flops, arrays, launch)


def mlp_out(sizes: Sizes, rows: int) -> Operation:
    hidden, inter = sizes.config.hidden_size, sizes.config.intermediate_size

    def arrays(inputs: Inputs) -> tuple[Any, ...]:
        b = replace(_buffers(sizes, inputs, rows, 0), activated=inputs.new(rows, inter))
        return inputs.new(hidden, inter), inputs.out(rows, hidden), b

    def launch(ops: Any, weight: Any, x: Any, b: Buffers) -> None:
        ops.mlp_out(x, SimpleNamespace(down=weight), b)

    moved = (rows * inter + hidden * inter + 2 * rows * hidden) * sizes.element
    shape = f"({rows},{inter}) x ({hidden},{inter})"
    return Operation("stage mlp_out", rows, shape, moved, 2 * rows * hidden * inter, arrays, launch)


def head(sizes: Sizes, rows: int) -> Operation:
    hidden, vocabulary = sizes.config.hidden_size, sizes.config.vocab_size

    def arrays(inputs: Inputs) -> tuple[Any, ...]:
        b = _buffers(sizes, inputs, rows, rows)
        weights = inputs.new(hidden), inputs.new(vocabulary, hidden)
        return inputs.new(rows, hidden), *weights, inputs.meta(Step(rows, 1)), b.logits, b

    def launch(ops: Any, x: Any, norm: Any, weight: Any, meta: Any, _logits: Any, b: Buffers) -> None:
        ops.head(x, SimpleNamespace(norm=norm, lm_head=weight), meta, b)

    numbers = (rows * hidden + hidden + vocabulary * hidden) * sizes.element
    moved = numbers + rows * (INT + vocabulary * FLOAT)
    flops = 4 * rows * hidden + 2 * rows * vocabulary * hidden
    return Operation("stage head", rows, f"({rows},{hidden}) x ({vocabulary},{hidden})", moved, flops, arrays, launch)


def _buffers(sizes: Sizes, inputs: Inputs, rows: int, wanted: int) -> Buffers:
    """What stages leave for one another; wanted: rows of logits."""
    config, q, kv = sizes.config, sizes.q, sizes.kv
    widths = {"hidden": config.hidden_size, "normed": config.hidden_size, "qkv": q + 2 * kv, "attended": q}
    widths |= {"gate_up": 2 * config.intermediate_size, "activated": config.intermediate_size}
    arrays = {name: inputs.out(rows, width) for name, width in widths.items()}
    arrays |= {name: inputs.out(wanted, config.hidden_size) for name in ("last", "last_normed", "few_hidden")}
    arrays["few_q"] = inputs.out(wanted, q)
    logits = inputs.out(wanted, config.vocab_size, dtype=np.float32)
    table = inputs.new(rows, config.head_dim, dtype=np.float32)
    return Buffers(**arrays, logits=logits, rope_table=table, q_columns=q, kv_columns=kv)
