"""The oracle: a Llama forward from the folder's own files to logits, in NumPy, from top to bottom.

It shares nothing with the engine: no cache, no blocks, no stages, no loader. Engine runs are compared with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

Config = dict[str, Any]


class Oracle:
    """A model folder in the Hugging Face layout; float32, or float64 to judge float32 itself."""

    def __init__(self, folder: str | Path, dtype: Any = np.float32) -> None:
        self.config: Config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        self.weights: dict[str, np.ndarray] = {}
        self.dtype = np.dtype(dtype)
        for file in sorted(Path(folder).glob("*.safetensors")):
            self.weights |= _read_safetensors(file, self.dtype)

    def logits(self, ids: list[int]) -> np.ndarray:
        """Token ids (T) -> logits (T,V) after each of them."""
        c, n = self.config, len(ids)
        heads, hidden, eps = c["num_attention_heads"], c["hidden_size"], self.dtype.type(c["rms_norm_eps"])
        kv_heads = c.get("num_key_value_heads") or heads
        dim = c.get("head_dim") or hidden // heads
        angle = np.arange(n, dtype=np.float32)[:, None] * _inv_freq(c, dim)
        cos, sin = np.cos(angle).astype(self.dtype), np.sin(angle).astype(self.dtype)
        future = np.triu(np.ones((n, n), bool), 1)

        def norm(x: np.ndarray, name: str) -> np.ndarray:
            return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * self.weights[name + ".weight"]

        def split(x: np.ndarray, count: int) -> np.ndarray:
            return x.reshape(n, count, dim).transpose(1, 0, 2)

        def rotate(x: np.ndarray) -> np.ndarray:
            a, b = x[..., : dim // 2], x[..., dim // 2 :]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

        x = self.weights["model.embed_tokens.weight"][ids]
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            y = norm(x, f"{layer}.input_layernorm")
            q, k, v = (y @ self.weights[f"{layer}.self_attn.{name}_proj.weight"].T for name in "qkv")
            q, k, v = rotate(split(q, heads)), rotate(split(k, kv_heads)), split(v, kv_heads)
            k, v = (np.repeat(each, heads // kv_heads, axis=0) for each in (k, v))
            scores = np.where(future, -np.inf, q @ k.transpose(0, 2, 1) / self.dtype.type(dim**0.5))
            weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
            attended = (weight / weight.sum(axis=-1, keepdims=True)) @ v
            attended = attended.transpose(1, 0, 2).reshape(n, heads * dim)
            x = x + attended @ self.weights[f"{layer}.self_attn.o_proj.weight"].T
            y = norm(x, f"{layer}.post_attention_layernorm")
            gate, up = (y @ self.weights[f"{layer}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"{layer}.mlp.down_proj.weight"].T
        return norm(x, "model.norm") @ self._head().T

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The next `count` tokens, the best one each time, everything computed anew for each."""
        known = list(ids)
        for _ in range(count):
            known.append(int(self.logits(known)[-1].argmax()))
        return known[len(ids) :]

    def _head(self) -> np.ndarray:
        tied = self.config.get("tie_word_embeddings", False)
        return self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]


def _read_safetensors(file: Path, dtype: np.dtype) -> dict[str, np.ndarray]:
    """8 bytes: the length of a JSON header; the header: each tensor's type, shape and bytes; then the bytes."""
    raw = file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, tensor in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            first, last = tensor["data_offsets"]
            values = _numbers(raw[start + first : start + last], tensor["dtype"])
            tensors[name] = values.astype(dtype).reshape(tensor["shape"])
    return tensors


def _numbers(data: bytes, kind: str) -> np.ndarray:
    if kind == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F16": "<f2", "F32": "<f4"}[kind])


def _inv_freq(c: Config, dim: int) -> np.ndarray:
    """Radians a position for each pair (dim/2,), float32 in every case: the model was trained with these."""
    scaling = c.get("rope_parameters") or c.get("rope_scaling") or {}
    theta = scaling.get("rope_theta", c.get("rope_theta", 10000.0))
    freq = 1 / np.float32(theta) ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return freq
    if kind == "linear":
        return freq / np.float32(scaling["factor"])
    if kind != "llama3":
        raise ValueError(f"rope_type is {kind!r}; the oracle knows default, linear and llama3")
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * freq / (2 * np.pi)  # in the original context
    keep = np.clip((turns - low) / (high - low), 0, 1)  # 1: a short wavelength, as it was; 0: a long one, stretched
    return (freq * (keep + (1 - keep) / scaling["factor"])).astype(np.float32)
