"""Arrays to measure operations with: each set of them lies elsewhere in a memory larger than a GPU's L2 cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.device.source import as_dtype
from tiny_vllm.engine.kv_cache import BLOCK_SIZE
from tiny_vllm.ops.argmax import Argmax
from tiny_vllm.ops.sampling import ROW, SamplingKernels
from tiny_vllm.types import Array, StepMeta

ROTATE_BYTES = 320 << 20  # an H200 has 50 MB of L2
ALIGNMENT = 256  # bytes, as an allocation's
PIECE = 1 << 20  # random numbers that are repeated: no time depends on them


@dataclass(frozen=True)
class Step:
    """`requests`, each of `new` tokens after `cached` that the KV cache holds."""

    requests: int
    new: int
    cached: int = 0

    @property
    def tokens(self) -> int:
        return self.requests * self.new

    @property
    def keys(self) -> int:
        """Of one request, its new ones included."""
        return self.cached + self.new

    @property
    def blocks(self) -> int:
        """Of one request."""
        return -(-self.keys // BLOCK_SIZE)

    @property
    def pairs(self) -> int:
        """Of a new token and a key that it sees, over all requests."""
        return self.requests * (self.new * self.cached + self.new * (self.new + 1) // 2)


class Pool:
    """One allocation that successive arrays walk through, from its end to its beginning again."""

    def __init__(self, device: Device, dtype: Any, num_bytes: int, rng: np.random.Generator | None) -> None:
        """rng: for random values; None: zeros."""
        self._device, self._dtype, self._rng = device, as_dtype(dtype), rng
        self._next = 0
        self._memory = self._allocate(num_bytes // self._dtype.itemsize)

    def take(self, *shape: int) -> Array:
        """The next array of this shape, in no byte of the one before."""
        count, grain = math.prod(shape), ALIGNMENT // self._dtype.itemsize
        room = -(-count // grain) * grain
        if 2 * room > self._memory.size:
            self._memory, self._next = self._allocate(2 * room), 0
        start = self._next if self._next + room <= self._memory.size else 0
        self._next = start + room
        return self._memory[start : start + count].reshape(shape)

    def _allocate(self, count: int) -> Array:
        if self._rng is None:
            return self._device.zeros(count, self._dtype)
        piece = self._rng.standard_normal(min(PIECE, count), dtype=np.float32).astype(self._dtype)
        return self._device.asarray(np.resize(piece, count))


class Inputs:
    """What operations read and write, of one element type. Outputs lie apart, so that no input becomes infinite."""

    def __init__(self, device: Device, dtype: Any, num_bytes: int = ROTATE_BYTES) -> None:
        """num_bytes: of each pool; it grows to twice the largest array."""
        self.device, self.dtype, self._num_bytes = device, as_dtype(dtype), num_bytes
        self._rng = np.random.default_rng(0)
        self.argmax = Argmax(device)
        self._pools: dict[tuple[np.dtype, bool], Pool] = {}
        self._samplers: dict[tuple[int, int, bool], SamplingKernels] = {}

    def new(self, *shape: int, dtype: Any = None) -> Array:
        """Random values."""
        return self._pool(dtype, is_output=False).take(*shape)

    def out(self, *shape: int, dtype: Any = None) -> Array:
        """An array to write to, zeros at first."""
        return self._pool(dtype, is_output=True).take(*shape)

    def _pool(self, dtype: Any, is_output: bool) -> Pool:
        key = (self.dtype if dtype is None else as_dtype(dtype), is_output)
        if key not in self._pools:
            self._pools[key] = Pool(self.device, key[0], self._num_bytes, None if is_output else self._rng)
        return self._pools[key]

    def ids(self, count: int, below: int) -> Array:
        """(count,) int32 from 0 to below, in no order, each as often as any other."""
        return self._int32(np.resize(self._rng.permutation(below), count))

    def reset(self) -> None:
        """Give back what a single operation needed besides the pools."""
        self._samplers.clear()

    def cache(self, blocks: int, kv_heads: int, head_dim: int, is_output: bool = False) -> Array:
        """One layer's KV cache."""
        return (self.out if is_output else self.new)(blocks, kv_heads, 2, BLOCK_SIZE, head_dim)

    def meta(self, step: Step) -> StepMeta:
        """Requests of equal lengths whose blocks lie in no order."""
        table = self._rng.permutation(step.requests * step.blocks).reshape(step.requests, step.blocks)
        positions = np.tile(np.arange(step.cached, step.keys), step.requests)
        slots = table.repeat(step.new, axis=0)[np.arange(step.tokens), positions // BLOCK_SIZE] * BLOCK_SIZE
        starts = np.arange(step.requests + 1) * step.new
        positions_and_slots = self._int32(positions), self._int32(slots + positions % BLOCK_SIZE)
        lengths = self._int32(starts), self._int32(np.full(step.requests, step.keys)), self._int32(table)
        on_host = [step.new] * step.requests, [step.keys] * step.requests
        return StepMeta(*positions_and_slots, *lengths, self._int32(starts[1:] - 1), *on_host)

    def sampler(self, rows: int, vocab_size: int, is_filtered: bool) -> SamplingKernels:
        """Kernels whose rows are set: temperature 0.6, and if filtered top-k 50 and top-p 0.9."""
        key = (rows, vocab_size, is_filtered)
        if key not in self._samplers:
            wanted = np.zeros(rows, ROW)
            wanted["slot"], wanted["temperature"], wanted["seed_low"] = -1, 0.6, np.arange(rows)
            wanted["is_filtered"], wanted["top_k"], wanted["top_p"] = is_filtered, min(50, vocab_size), 0.9
            kernels = SamplingKernels(self.device, rows, vocab_size, 1, 1, 1)
            logits = self.new(rows, vocab_size, dtype=np.float32)
            kernels(logits, wanted, [], self.out(rows, dtype=np.int32))
            self._samplers[key] = kernels
        return self._samplers[key]

    def _int32(self, values: np.ndarray) -> Array:
        return self.device.asarray(np.ascontiguousarray(values, np.int32))
