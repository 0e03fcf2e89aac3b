"""The operations of a layer, for T rows; shapes as in ops/base.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiny_vllm.bench.ops.inputs import Inputs, Step
from tiny_vllm.bench.ops.operation import FLOAT, INT, Operation, Sizes
from tiny_vllm.engine.kv_cache import BLOCK_SIZE


def rms_norm(sizes: Sizes, rows: int) -> Operation:
    hidden, eps = sizes.config.hidden_size, sizes.config.rms_norm_eps
    return Operation(
        "rms_norm",
        rows,
        f"({rows},{hidden})",
        (2 * rows * hidden + hidden) * sizes.element,
        4 * rows * hidden,  # square, add, two factors
        lambda inputs: (inputs.new(rows, hidden), inputs.new(hidden), inputs.out(rows, hidden)),
        lambda ops, x, weight, out: ops.rms_norm(x, weight, eps, out=out),
    )


def linear(
    sizes: Sizes, rows: int, *, name: str, columns: int, inner: int, add: bool = False, is_float: bool = False
) -> Operation:
    written = rows * columns * (FLOAT if is_float else sizes.element)
    dtype = np.float32 if is_float else None
    return Operation(
        name,
        rows,
        f"({rows},{inner}) x ({columns},{inner})",
        (rows * inner + columns * inner) * sizes.element + (2 if add else 1) * written,
        2 * rows * columns * inner,
        lambda inputs: (inputs.new(rows, inner), inputs.new(columns, inner), inputs.out(rows, columns, dtype=dtype)),
        lambda ops, x, weight, out: ops.linear(x, weight, out=out, add=add),
    )


def rope(sizes: Sizes, rows: int) -> Operation:
    q, k, dim = sizes.q, sizes.kv, sizes.config.head_dim

    def arrays(inputs: Inputs) -> tuple[Any, ...]:
        qkv = inputs.out(rows, q + 2 * k)
        return qkv[:, :q], qkv[:, q : q + k], inputs.ids(rows, rows), inputs.new(rows, dim, dtype=np.float32)

    moved = 2 * rows * (q + k) * sizes.element + rows * (INT + dim * FLOAT)
    flops = 3 * rows * (q + k)  # of a pair: four products, two sums
    return Operation(
        "rope", rows, f"({rows},{q}) and ({rows},{k})", moved, flops, arrays, lambda ops, *each: ops.rope(*each)
    )


def write_kv(sizes: Sizes, rows: int) -> Operation:
    q, k, config = sizes.q, sizes.kv, sizes.config

    def arrays(inputs: Inputs) -> tuple[Any, ...]:
        qkv, blocks = inputs.new(rows, q + 2 * k), -(-rows // BLOCK_SIZE)
        kv = inputs.cache(blocks, config.num_key_value_heads, config.head_dim, is_output=True)
        return qkv[:, q : q + k], qkv[:, q + k :], kv, inputs.ids(rows, blocks * BLOCK_SIZE)

    moved = 4 * rows * k * sizes.element + rows * INT
    return Operation("write_kv", rows, f"2 x ({rows},{k})", moved, 0, arrays, lambda ops, *each: ops.write_kv(*each))


def attention(sizes: Sizes, step: Step, name: str) -> Operation:
    """Keys and values once, q and out; two products of D for each query head, and key that a token sees."""
    config, q = sizes.config, sizes.q

    def arrays(inputs: Inputs) -> tuple[Any, ...]:
        kv = inputs.cache(step.requests * step.blocks, config.num_key_value_heads, config.head_dim)
        return inputs.new(step.tokens, q + 2 * sizes.kv)[:, :q], kv, inputs.meta(step), inputs.out(step.tokens, q)

    vectors = (2 * step.requests * step.keys * sizes.kv + 2 * step.tokens * q) * sizes.element
    return Operation(
        name,
        step.tokens,
        f"{step.requests} x {step.new}, {step.keys} keys",
        vectors + INT * (step.requests * (step.blocks + 2) + 1),
        4 * q * step.pairs,
        arrays,
        lambda ops, queries, kv, meta, out: ops.attention(queries, kv, meta, out=out),
        step.requests,
        step.keys,
    )


def silu_mul(sizes: Sizes, rows: int) -> Operation:
    inter = sizes.config.intermediate_size
    return Operation(
        "silu_mul",
        rows,
        f"({rows},{2 * inter})",
        3 * rows * inter * sizes.element,
        4 * rows * inter,  # exp, add, divide, multiply
        lambda inputs: (inputs.new(rows, 2 * inter), inputs.out(rows, inter)),
        lambda ops, gate_up, out: ops.silu_mul(gate_up, out=out),
    )
