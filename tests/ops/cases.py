"""The sets of operations that one table of tests holds equal, and how their results are compared."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.ops import make_ops
from tiny_vllm.ops.base import Ops
from tiny_vllm.ops.invariant import InvariantOps
from tiny_vllm.ops.tuned import TunedOps
from tiny_vllm.types import Array, StepMeta

COURSE = ("chapters.ch14_paged_attention.stage", "PagedAttentionOps")  # the last chapter that changes an operation
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
# One unit in the last place of a 16-bit result, which may fall to either side; float32: sums in another order.
RTOL = {"float32": 1e-5, "bfloat16": 2.0**-7, "float16": 2.0**-10}
SCALES = (1e-3, 1.0, 1e3)
Make = Callable[..., Ops]


def course(device: Device, config: Any, dtype: Any) -> Ops:
    return getattr(importlib.import_module(COURSE[0]), COURSE[1])(device, config, dtype)


def tuned(device: Device, config: Any, dtype: Any) -> Ops:
    """With attention.cu on a GPU too: what rounds weights to 16 bits has test_paged_attention.py and its tolerances."""
    return TunedOps(device, config, dtype, attention="plain")


SETS: dict[str, Callable[[Device, Any, Any], Ops]] = {
    "reference": lambda *args: make_ops("reference", *args),
    "tuned": tuned,
    "course": course,
    "invariant": InvariantOps,
}


@dataclass(frozen=True)
class Shape:
    """What operations ask of a ModelConfig."""

    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 16
    rms_norm_eps: float = 1e-5

    @property
    def q_columns(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def kv_columns(self) -> int:
        return self.num_key_value_heads * self.head_dim


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, scale: float = 1.0) -> np.ndarray:
    """Asymmetric about zero, so that a lost sign or a sum in place of a difference shows."""
    return (scale * (rng.standard_normal(shape) + 0.3)).astype(dtype)


def poisoned(device: Device, shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of NaN, for a result: what nobody wrote shows."""
    return device.asarray(np.full(shape, np.nan).astype(dtype))


def integers(device: Device, values: Any) -> Array:
    return device.asarray(np.array(values, np.int32))


def assert_close(got: np.ndarray, expected: np.ndarray, rtol: float | None = None) -> None:
    """Every element within rtol of its own size, and of what float32 rounds the largest element by."""
    name = got.dtype.name
    expected = expected.astype(got.dtype).astype(np.float32)  # what is too large for the type is inf in both
    finite = np.abs(expected[np.isfinite(expected)])
    smallest = 2.0**-24 if name == "float16" else 0.0
    atol = RTOL["float32"] * float(finite.max(initial=0)) + smallest
    np.testing.assert_allclose(got.astype(np.float32), expected, rtol=rtol or RTOL[name], atol=atol)


def step_meta(
    device: Device,
    query_lens: list[int],
    seq_lens: list[int],
    tables: list[list[int]],
    block_size: int,
    logits_rows: list[int] | None = None,
) -> StepMeta:
    """The StepMeta of requests with these lengths and blocks; logits of each request's last row unless rows are given.

    Tables are padded with the last block that any request has, which a request must not read for that.
    """
    width, padding = max(map(len, tables)), max((b for table in tables for b in table), default=0)
    positions, slots = [], []
    for query_len, seq_len, table in zip(query_lens, seq_lens, tables, strict=True):
        first = max(0, seq_len - query_len)
        for p in range(first, first + query_len):
            positions.append(p)
            slots.append(table[p // block_size] * block_size + p % block_size if seq_len else -1)
    starts = np.concatenate([[0], np.cumsum(query_lens)])
    rows = logits_rows if logits_rows is not None else [int(end) - 1 for end in starts[1:]]
    return StepMeta(
        positions=integers(device, positions),
        slot_mapping=integers(device, slots),
        query_start_loc=integers(device, starts),
        seq_lens=integers(device, seq_lens),
        block_table=integers(device, [table + [padding] * (width - len(table)) for table in tables]),
        logits_indices=integers(device, rows),
        query_lens_host=list(query_lens),
        seq_lens_host=list(seq_lens),
    )
