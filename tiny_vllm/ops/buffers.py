"""The arrays that a step writes: allocated once, reused by every layer and every step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.types import Array


@dataclass
class Buffers:
    """Activations of T tokens and R wanted rows; H, V, I, Hq, Hkv, D as in ops/base.py.

    hidden      (T,H)            the residual stream
    normed      (T,H)
    qkv         (T,(Hq+2Hkv)*D)  one product; q, k, v below are column views of it
    attended    (T,Hq*D)
    gate_up     (T,2I)
    activated   (T,I)
    last        (R,H)            rows whose logits are wanted
    last_normed (R,H)
    logits      (R,V) float32
    few_hidden  (most R,H)       of the rows that alone go on in the last layer, as few_q (most R,Hq*D)
    rope_table  (P,D) float32    cosines, then sines
    """

    hidden: Array
    normed: Array
    qkv: Array
    attended: Array
    gate_up: Array
    activated: Array
    last: Array
    last_normed: Array
    logits: Array
    few_hidden: Array
    few_q: Array
    rope_table: Array
    q_columns: int
    kv_columns: int

    @classmethod
    def allocate(
        cls, device: Device, config: Any, dtype: Any, num_tokens: int, num_rows: int, rope_table: Array
    ) -> Buffers:
        """Buffers for steps of at most num_tokens tokens and num_rows rows of logits."""
        hidden, inter = config.hidden_size, config.intermediate_size
        q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        widths = {"hidden": hidden, "normed": hidden, "qkv": q + 2 * kv, "attended": q}
        widths |= {"gate_up": 2 * inter, "activated": inter}
        arrays = {name: device.empty((num_tokens, width), dtype) for name, width in widths.items()}
        arrays |= {name: device.empty((num_rows, hidden), dtype) for name in ("last", "last_normed", "few_hidden")}
        arrays["few_q"] = device.empty((num_rows, q), dtype)
        logits = device.empty((num_rows, config.vocab_size), np.float32)
        return cls(**arrays, logits=logits, rope_table=rope_table, q_columns=q, kv_columns=kv)

    def take(self, num_tokens: int, num_rows: int) -> Buffers:
        """The first rows of every buffer, as views: what a step of this size uses."""
        rows = {name: num_tokens for name in ("hidden", "normed", "qkv", "attended", "gate_up", "activated")}
        rows |= {name: num_rows for name in ("last", "last_normed", "logits")}
        views = {name: getattr(self, name)[:count] for name, count in rows.items()}
        return replace(self, **views)

    def few(self, count: int) -> Buffers:
        """For `count` rows of a step, as views: residual stream and q of their own, else what is free by then."""
        views = {name: getattr(self, name)[:count] for name in ("normed", "attended", "gate_up", "activated")}
        return replace(self, **views, hidden=self.few_hidden[:count], qkv=self.few_q[:count])

    @cached_property
    def q(self) -> Array:
        return self.qkv[:, : self.q_columns]

    @cached_property
    def k(self) -> Array:
        return self.qkv[:, self.q_columns : self.q_columns + self.kv_columns]

    @cached_property
    def v(self) -> Array:
        return self.qkv[:, self.q_columns + self.kv_columns :]
