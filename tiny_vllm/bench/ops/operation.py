"""One operation of a step: the bytes it must move, its FLOPs, and how it is launched.

Bytes: what is read and written, each once. FLOPs: two for a multiplication and addition of a product, one for any other
operation on a number; moving, rounding and random bits are none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiny_vllm.bench.ops.inputs import Inputs
from tiny_vllm.models.config import ModelConfig

INT, FLOAT = 4, 4  # bytes


@dataclass(frozen=True)
class Operation:
    """arrays: one set of what a launch takes; launch: called with a set of operations and those arrays.

    max_len: keys of the longest request, for the scratch of attention. engine_only: no primitive of ops/base.py, so
    that only the engine's own set, "tuned", has it.
    """

    name: str
    rows: int
    shape: str
    num_bytes: int
    flops: int
    arrays: Callable[[Inputs], tuple[Any, ...]]
    launch: Callable[..., Any]
    requests: int = 1
    max_len: int = 1
    engine_only: bool = False

    def floor(self, bandwidth: float, rate: float) -> float:
        """Seconds that no kernel can beat: bytes at `bandwidth` a second or FLOPs at `rate` a second."""
        return max(self.num_bytes / bandwidth, self.flops / rate)


@dataclass(frozen=True)
class Sizes:
    """A model's numbers, and the bytes of an element."""

    config: ModelConfig
    element: int

    @property
    def q(self) -> int:
        """Columns of the queries."""
        return self.config.num_attention_heads * self.config.head_dim

    @property
    def kv(self) -> int:
        """Columns of the keys, and of the values."""
        return self.config.num_key_value_heads * self.config.head_dim


Make = Callable[[Sizes, int], Operation]  # from a number of rows
