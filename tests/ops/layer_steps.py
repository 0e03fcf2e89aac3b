"""Steps of one new token a request through all layers: random models, a cache in no order, and what must come out."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from tests.ops.cases import DTYPES, random, step_meta
from tiny_vllm.device.base import Device
from tiny_vllm.ops.base import Ops
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.types import KVCache, StepMeta

BF16, BLOCK_SIZE, MAX_LEN = DTYPES["bfloat16"], 16, 4096


@dataclass(frozen=True)
class LayerShape:
    """What a set of operations asks of a ModelConfig for whole layers."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int = 2
    rms_norm_eps: float = 1e-5
    vocab_size: int = 32


def wide(values: np.ndarray) -> np.ndarray:
    return np.asarray(values).astype(np.float32)


def rounded(values: np.ndarray) -> np.ndarray:
    return values.astype(BF16).astype(np.float32)


def norm(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * wide(gain)


def turn(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """RoPE of (heads, D) by one row of the table."""
    half = x.shape[-1] // 2
    a, b, cosine, sine = x[..., :half], x[..., half:], angles[:half], angles[half:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


class Model:
    """Random weights on the host, and the same on the device."""

    def __init__(self, device: Device, rng: np.random.Generator, shape: LayerShape) -> None:
        self.device, self.shape = device, shape
        hidden, inter, dim = shape.hidden_size, shape.intermediate_size, shape.head_dim
        q, kv = shape.num_attention_heads * dim, shape.num_key_value_heads * dim
        sizes = {"qkv": (q + 2 * kv, hidden), "o": (hidden, q), "gate_up": (2 * inter, hidden), "down": (hidden, inter)}
        self.host, self.layers = [], []
        for _ in range(shape.num_hidden_layers):
            layer = {
                name: (rng.standard_normal(size) * size[1] ** -0.5).astype(BF16)  # about zero, or a row of errors grows
                for name, size in sizes.items()
            }
            layer |= {name: random(rng, (hidden,), BF16) for name in ("input_norm", "post_attention_norm")}
            self.host.append(SimpleNamespace(**layer))
            self.layers.append(SimpleNamespace(**{name: device.asarray(value) for name, value in layer.items()}))
        self.table = rng.uniform(-1, 1, (MAX_LEN, dim)).astype(np.float32)


class LayerStep:
    """A step of requests of these lengths, the new token included; 0 is a padded row. All else in the cache is NaN."""

    def __init__(self, model: Model, rng: np.random.Generator, lengths: list[int]) -> None:
        self.model, self.lengths, device, shape = model, lengths, model.device, model.shape
        counts = [-(-length // BLOCK_SIZE) for length in lengths]
        free = rng.permutation(sum(counts) + 2).tolist()
        self.tables = [free[sum(counts[:r]) : sum(counts[: r + 1])] for r in range(len(lengths))]
        size = (len(free), shape.num_key_value_heads, 2, BLOCK_SIZE, shape.head_dim)
        self.host = [np.full(size, np.nan, np.float32).astype(BF16) for _ in model.layers]
        for layer in self.host:
            for table, length in zip(self.tables, lengths, strict=True):
                for token in range(length - 1):
                    block, at = table[token // BLOCK_SIZE], token % BLOCK_SIZE
                    layer[block, :, :, at] = random(rng, (*size[1:3], size[4]), BF16)
        self.cache = KVCache([device.asarray(layer) for layer in self.host], BLOCK_SIZE)
        self.x = random(rng, (len(lengths), shape.hidden_size), BF16)
        self.meta: StepMeta = step_meta(device, [1] * len(lengths), lengths, self.tables, BLOCK_SIZE)
        table = device.asarray(model.table)
        self.buffers = Buffers.allocate(device, shape, BF16, len(lengths), len(lengths), table)
        self.hidden = device.asarray(self.x)

    def restore(self) -> None:
        """The residual stream and the cache as they were before the step."""
        self.model.device.copy_in(self.hidden, self.x)
        for array, values in zip(self.cache.layers, self.host, strict=True):
            self.model.device.copy_in(array, values)

    def launch(self, ops: Ops) -> None:
        ops.layers(self.hidden, self.model, self.cache, self.meta, self.buffers)

    def run(self, ops: Ops) -> np.ndarray:
        """The residual stream after the step (R,H) float32; nothing is allocated for it."""
        self.restore()
        with self.model.device.no_allocation():
            self.launch(ops)
        return wide(self.model.device.to_host(self.hidden))

    def written(self) -> np.ndarray:
        """Keys and values of the new tokens (layers, rows that have a slot, kv heads, 2, D)."""
        slots = [int(s) for s in self.model.device.to_host(self.meta.slot_mapping) if s >= 0]
        places = [(slot // BLOCK_SIZE, slot % BLOCK_SIZE) for slot in slots]
        layers = [wide(self.model.device.to_host(layer)) for layer in self.cache.layers]
        return np.stack([[layer[block, :, :, at] for block, at in places] for layer in layers])

    def untouched(self) -> bool:
        """Whether the cache holds what it held everywhere but in the slots of new tokens."""
        slots = [int(s) for s in self.model.device.to_host(self.meta.slot_mapping) if s >= 0]
        for array, values in zip(self.cache.layers, self.host, strict=True):
            got, want = self.model.device.to_host(array).view(np.uint16).copy(), values.view(np.uint16).copy()
            for slot in slots:
                got[slot // BLOCK_SIZE, :, :, slot % BLOCK_SIZE] = want[slot // BLOCK_SIZE, :, :, slot % BLOCK_SIZE] = 0
            if not np.array_equal(got, want):
                return False
        return True

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """(residual stream, new keys and values) in float32; only what the cache holds is rounded."""
        x, written, eps = wide(self.x), [], self.model.shape.rms_norm_eps
        for layer, cache in zip(self.model.host, self.host, strict=True):
            attended, new = self._attend(norm(x, layer.input_norm, eps) @ wide(layer.qkv).T, wide(cache))
            written.append(new)
            x = x + attended @ wide(layer.o).T
            gate, up = np.split(norm(x, layer.post_attention_norm, eps) @ wide(layer.gate_up).T, 2, -1)
            x = x + gate / (1 + np.exp(-gate)) * up @ wide(layer.down).T
        return x, np.stack(written)

    def _attend(self, qkv: np.ndarray, cache: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        shape = self.model.shape
        heads, kv_heads, dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        attended, written = [], []
        for row, length in enumerate(self.lengths):
            all_heads = qkv[row].reshape(-1, dim)
            if length == 0:
                attended.append(np.zeros(heads * dim, np.float32))
                continue
            angles = self.model.table[length - 1]
            q, k = turn(all_heads[:heads], angles), rounded(turn(all_heads[heads : heads + kv_heads], angles))
            v = rounded(all_heads[heads + kv_heads :])
            written.append(np.stack([k, v], 1))
            past = cache[self.tables[row]].transpose(1, 2, 0, 3, 4).reshape(kv_heads, 2, -1, dim)[:, :, : length - 1]
            keys, values = (np.concatenate([past[:, i], (k, v)[i][:, None]], 1) for i in range(2))
            scores = np.einsum("hgd,htd->hgt", q.reshape(kv_heads, -1, dim), keys) * dim**-0.5
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            attended.append(np.einsum("hgt,htd->hgd", weights, values).reshape(-1))
        return np.stack(attended), written


def distance(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest distance of a row, relative to the row's length; NaN stays NaN."""
    difference = np.linalg.norm(got - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    return float(np.max(difference))
