"""Every operation in NumPy and float32, a few lines each: what kernels are compared with.

The functions take and give NumPy arrays; `ReferenceOps` runs a model on them. Shapes and symbols as in ops/base.py.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tiny_vllm.ops.base import Ops
from tiny_vllm.types import Array, StepMeta


def _float32(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float32, copy=False)


def embed(tokens: Any, table: Any) -> np.ndarray:
    """Rows of a table: tokens (T,) integers, table (V,H) -> (T,H)."""
    return _float32(table[tokens])


def rms_norm(x: Any, weight: Any, eps: float) -> np.ndarray:
    """x (T,H), weight (H,) -> (T,H): each row divided by its root mean square (eps under the root), times the gain."""
    x = _float32(x)
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + np.float32(eps)) * _float32(weight)


def rope(x: Any, positions: Any, table: Any) -> np.ndarray:
    """x (T, heads * D) rotated by position: pairs (i, i + D/2); table (P,D), cosines then sines -> (T, heads * D)."""
    half = table.shape[1] // 2
    cos, sin = (_float32(part)[:, None, :] for part in (table[positions, :half], table[positions, half:]))
    heads = _float32(x).reshape(len(x), -1, 2 * half)
    first, second = heads[..., :half], heads[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).reshape(x.shape)


def linear(x: Any, weight: Any) -> np.ndarray:
    """x (T,K), weight (N,K) -> x @ weight.T (T,N)."""
    return _float32(x) @ _float32(weight).T


def silu_mul(gate_up: Any) -> np.ndarray:
    """gate_up (T,2I), gate first -> silu(gate) * up (T,I)."""
    gate, up = np.split(_float32(gate_up), 2, axis=-1)
    with np.errstate(over="ignore"):  # exp(-gate) = inf is meant: silu is then -0
        return gate / (1 + np.exp(-gate)) * up


def attention_rows(q: Any, keys: Any, values: Any) -> np.ndarray:
    """One request's rows: q (n,Hq,D) are the last n of L positions, keys and values (L,Hkv,D) -> (n,Hq,D)."""
    n, heads, dim = q.shape
    group = heads // keys.shape[1]
    k, v = (np.repeat(_float32(x), group, axis=1).swapaxes(0, 1) for x in (keys, values))  # (Hq,L,D)
    scores = _float32(q).swapaxes(0, 1) @ k.swapaxes(1, 2) / np.float32(np.sqrt(dim))
    position = np.arange(len(keys) - n, len(keys))
    scores[:, np.arange(len(keys)) > position[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True) @ v).swapaxes(0, 1)


def attention(q: Any, kv: Any, query_start_loc: Any, seq_lens: Any, block_table: Any) -> np.ndarray:
    """Paged causal attention: q (T,Hq*D), kv (blocks,Hkv,2,B,D), the rest as in StepMeta -> (T,Hq*D); length 0: 0."""
    _, _, _, block_size, dim = kv.shape
    out = np.zeros(q.shape, np.float32)
    for r, length in enumerate(int(n) for n in seq_lens):
        rows = slice(int(query_start_loc[r]), int(query_start_loc[r + 1]))
        if length == 0 or rows.start == rows.stop:
            continue
        blocks = [kv[int(b)] for b in block_table[r][: -(-length // block_size)]]  # each (Hkv, 2, B, D)
        keys, values = (np.concatenate([b[:, i].swapaxes(0, 1) for b in blocks])[:length] for i in (0, 1))
        heads = np.asarray(q[rows]).reshape(rows.stop - rows.start, -1, dim)
        out[rows] = attention_rows(heads, keys, values).reshape(len(heads), -1)
    return out


def write_kv(k: Any, v: Any, kv: Any, slots: Any) -> None:
    """Keys and values (T,Hkv*D) into kv (blocks,Hkv,2,B,D), in place; slot -1 is skipped."""
    _, heads, _, block_size, dim = kv.shape
    for row, slot in enumerate(int(s) for s in slots):
        if slot >= 0:
            block = kv[slot // block_size]
            block[:, 0, slot % block_size] = np.asarray(k[row]).reshape(heads, dim)
            block[:, 1, slot % block_size] = np.asarray(v[row]).reshape(heads, dim)


def argmax(logits: Any) -> np.ndarray:
    """The best id of each row of logits (R,V) -> (R,) int32; the lowest id wins a tie; NaN never wins; all NaN: 0."""
    logits = _float32(logits)
    largest = np.where(np.isnan(logits), -np.inf, logits).max(axis=-1, keepdims=True)
    return (logits == largest).argmax(axis=-1).astype(np.int32)  # the first that is; NaN equals nothing


class ReferenceOps(Ops):
    """The functions above as a set. On a GPU each operation fetches what it reads and sends back what it made: slow."""

    name: ClassVar[str] = "reference"
    graph_safe: ClassVar[bool] = False  # NumPy's work is no launch

    def embed(self, tokens: Array, table: Array, out: Array | None = None) -> Array:
        return self.take_rows(table, tokens, out)

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array | None = None) -> Array:
        return self._give(rms_norm(self._host(x), self._host(weight), eps), out)

    def rope(self, q: Array, k: Array, positions: Array, table: Array) -> None:
        where, angles = self._host(positions), self._host(table)
        for x in (q, k):
            self._give(rope(self._host(x), where, angles), x)

    def linear(self, x: Array, weight: Array, out: Array | None = None, add: bool = False) -> Array:
        product = linear(self._host(x), self._host(weight))
        return self._give(product + _float32(self._host(out)) if add else product, out)

    def silu_mul(self, gate_up: Array, out: Array | None = None) -> Array:
        return self._give(silu_mul(self._host(gate_up)), out)

    def attention(self, q: Array, kv: Array, meta: StepMeta, out: Array | None = None) -> Array:
        where = (self._host(x) for x in (meta.query_start_loc, meta.seq_lens, meta.block_table))
        return self._give(attention(self._host(q), _Blocks(self, kv), *where), out)

    def take_rows(self, x: Array, rows: Array, out: Array | None = None) -> Array:
        wanted = [self._host(x[int(row)]) for row in self._host(rows)]  # a table of weights is not fetched whole
        return self._give(np.array(wanted, np.float32).reshape(len(rows), x.shape[1]), out)

    def write_kv(self, k: Array, v: Array, kv: Array, slots: Array) -> None:
        keys, values, where = self._host(k), self._host(v), self._host(slots)
        cache = _Blocks(self, kv)
        write_kv(keys, values, cache, where)
        cache.send_back()

    def _host(self, array: Array) -> np.ndarray:
        """The array itself where it is NumPy's, else a copy, row by row where rows lie apart."""
        if isinstance(array, np.ndarray):
            return array
        if array.flags.c_contiguous:
            return self.device.to_host(array)
        return np.stack([self.device.to_host(row) for row in array])

    def _give(self, values: np.ndarray, out: Array | None) -> Array:
        """Write values into out, rounded to its type; a new array of the set's type where out is None."""
        if out is None:
            return self.device.asarray(values.astype(self.dtype))
        if isinstance(out, np.ndarray):
            out[...] = values
        elif out.flags.c_contiguous:
            self.device.copy_in(out, values.astype(out.dtype))
        else:
            for row, value in zip(out, values.astype(out.dtype), strict=True):
                self.device.copy_in(row, value)
        return out


class _Blocks:
    """One layer of a KV cache, of which only the blocks that are asked for are fetched: kv[block] -> (Hkv, 2, B, D)."""

    def __init__(self, ops: ReferenceOps, kv: Array) -> None:
        self.shape = kv.shape
        self._ops, self._kv = ops, kv
        self._fetched: dict[int, np.ndarray] = {}

    def __getitem__(self, block: int) -> np.ndarray:
        if block not in self._fetched:
            self._fetched[block] = self._ops._host(self._kv[block])
        return self._fetched[block]

    def send_back(self) -> None:
        for block, values in self._fetched.items():
            self._ops._give(values, self._kv[block])
