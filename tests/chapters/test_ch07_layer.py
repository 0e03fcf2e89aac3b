"""Chapter 07: SiLU at both ends, the residual, and a whole layer against a float64 one."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from chapters.ch07_layer.stage import LayerOps
from tiny_vllm.models.weights import LayerWeights
from tiny_vllm.ops.buffers import Buffers

DTYPES = [np.float32, ml_dtypes.bfloat16, np.float16]


def sigmoid(z):
    return 0.5 * (1 + np.tanh(z / 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, inter", [(1, 1), (3, 52), (2, 129)])
@pytest.mark.parametrize("scale", [1e-3, 1, 30])
def test_silu_mul(bench, rng, shape, assert_close, rows, inter, scale, dtype):
    gate_up = (rng.normal(size=(rows, 2 * inter)) * scale).astype(dtype)
    out = bench.poisoned(rows, inter, dtype=dtype)
    ops = LayerOps(bench.device, shape, dtype)
    assert ops.silu_mul(bench.put(gate_up, dtype), out) is out
    gate, up = gate_up[:, :inter].astype(np.float64), gate_up[:, inter:].astype(np.float64)
    assert_close(bench.get(out), gate * sigmoid(gate) * up, dtype)


def test_silu_has_no_nan_far_out(bench, shape):
    gate_up = np.array([[-1e4, -100, 0, 100, 1e4, 2, 2, 2, 2, 2]], np.float32)
    out = LayerOps(bench.device, shape, np.float32).silu_mul(bench.put(gate_up), bench.poisoned(1, 5))
    np.testing.assert_allclose(bench.get(out), [[0, 0, 0, 200, 2e4]], atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, hidden", [(1, 1), (3, 43), (4, 128)])
def test_add_residual(bench, rng, shape, rows, hidden, dtype):
    x, branch = rng.normal(size=(2, rows, hidden)).astype(dtype)
    array = bench.put(x, dtype)
    LayerOps(bench.device, shape, dtype).add_residual(array, bench.put(branch, dtype))
    expected = (x.astype(np.float32) + branch.astype(np.float32)).astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(bench.get(array), expected)


def layer_formula(x, w, config, frequencies):
    """A decoder layer in float64, head by head."""
    dim, heads, kv_heads = config.head_dim, config.num_attention_heads, config.num_key_value_heads

    def norm(row, weight):
        return row / np.sqrt((row**2).mean(axis=-1, keepdims=True) + config.rms_norm_eps) * weight

    def turn(part):
        z = part[:, : dim // 2] + 1j * part[:, dim // 2 :]
        z = z * np.exp(1j * np.outer(np.arange(len(x)), frequencies))
        return np.concatenate([z.real, z.imag], axis=1)

    qkv = norm(x, w["input_norm"]) @ w["qkv"].T
    parts = [qkv[:, i * dim : (i + 1) * dim] for i in range(heads + 2 * kv_heads)]
    attended = []
    for head in range(heads):
        kv_head = heads + head * kv_heads // heads
        scores = turn(parts[head]) @ turn(parts[kv_head]).T / np.sqrt(dim)
        weights = np.tril(np.exp(scores - scores.max(axis=1, keepdims=True)))
        attended.append(weights / weights.sum(axis=1, keepdims=True) @ parts[kv_head + kv_heads])
    x = x + np.concatenate(attended, axis=1) @ w["o"].T
    gate, up = np.split(norm(x, w["post_attention_norm"]) @ w["gate_up"].T, 2, axis=1)
    return x + (gate * sigmoid(gate) * up) @ w["down"].T


@pytest.mark.parametrize("gemm", ["cublas", "tiled"])
def test_a_whole_layer(bench, rng, shape, assert_close, gemm):
    hidden, inter, q, kv = shape.hidden_size, shape.intermediate_size, 6 * 16, 2 * 16
    sizes = {"qkv": (q + 2 * kv, hidden), "o": (hidden, q), "gate_up": (2 * inter, hidden), "down": (hidden, inter)}
    w = {name: (rng.normal(size=size) / np.sqrt(size[1])).astype(np.float32) for name, size in sizes.items()}
    w |= {name: rng.uniform(0.5, 2, hidden).astype(np.float32) for name in ("input_norm", "post_attention_norm")}
    frequencies = 10.0 ** -np.arange(8)
    angles = np.outer(np.arange(20), frequencies)
    table = bench.put(np.concatenate([np.cos(angles), np.sin(angles)], axis=1))

    x = rng.normal(size=(11, hidden)).astype(np.float32)
    array, positions = bench.put(x), bench.ints(np.arange(11))
    weights = LayerWeights(**{name: bench.put(values) for name, values in w.items()})
    buffers = Buffers.allocate(bench.device, shape, np.float32, 11, 1, table)
    ops = LayerOps(bench.device, shape, np.float32, gemm)
    ops.reserve(11, 1, 11)
    with bench.device.no_allocation():
        ops.layer(array, weights, positions, buffers)
    wide = {name: values.astype(np.float64) for name, values in w.items()}
    assert_close(bench.get(array), layer_formula(x.astype(np.float64), wide, shape, frequencies), rtol=1e-5)
