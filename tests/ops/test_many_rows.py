"""Steps of many rows: RoPE and cache write in one pass, and a last layer that ends for a few rows only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conftest import DATA
from tests.ops.cases import DTYPES, Shape, assert_close, integers, poisoned, random
from tests.ops.running import Running
from tests.ops.test_rope import angles
from tests.ops.test_write_kv import expected_cache
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.weights import load_weights
from tiny_vllm.ops.base import Ops
from tiny_vllm.ops.many_rows import ManyRows
from tiny_vllm.ops.tuned import TunedOps
from tiny_vllm.reference.ops import rope
from tiny_vllm.types import StepMeta

SHAPES = [(6, 2, 16), (3, 3, 64), (8, 2, 64), (7, 1, 64), (3, 1, 128), (1, 1, 16), (32, 8, 64)]


def meta_of(positions: Any, slots: Any) -> StepMeta:
    return StepMeta(positions, slots, None, None, None, None, [], [])


@pytest.mark.parametrize("block_size", [1, 5, 16])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_rope_and_cache_write(heads, kv_heads, head_dim, block_size, device, dtype, rng):
    """q in place, keys and values where their slots say and nowhere else; k and v of the product stay as they are."""
    kernels = ManyRows(device, Shape(heads, kv_heads, head_dim), dtype)
    assert kernels.turns
    q_end, k_end = heads * head_dim, (heads + kv_heads) * head_dim
    positions = np.array([99, 0, 1, 50, 50, 2, 98])
    slots = [9 * block_size - 1, -1, *rng.permutation(9 * block_size - 1)[:4].tolist(), -1]
    qkv, table = random(rng, (7, k_end + kv_heads * head_dim), dtype), angles(head_dim, 100)
    array, kv = device.asarray(qkv.copy()), poisoned(device, (9, kv_heads, 2, block_size, head_dim), dtype)
    meta, on_device = meta_of(integers(device, positions), integers(device, slots)), device.asarray(table)
    with device.no_allocation():
        kernels.rope_kv(array, kv, meta, on_device)
    got, k = device.to_host(array), rope(qkv[:, q_end:k_end], positions, table).astype(dtype)
    assert_close(got[:, :q_end], rope(qkv[:, :q_end], positions, table))
    np.testing.assert_array_equal(got[:, q_end:], qkv[:, q_end:])
    expected = expected_cache(k, qkv[:, k_end:], kv.shape, slots)
    assert_close(device.to_host(kv)[:, :, 0], expected[:, :, 0])
    np.testing.assert_array_equal(device.to_host(kv)[:, :, 1].astype(np.float32), expected[:, :, 1].astype(np.float32))


@pytest.mark.parametrize(("head_dim", "name", "turns"), [(24, "float32", True), (24, "bfloat16", False)])
def test_halves_of_heads_that_are_no_whole_vectors(head_dim, name, turns, device):
    assert ManyRows(device, Shape(head_dim=head_dim), DTYPES[name]).turns == turns


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 0), (0, 2)])
def test_q_alone_and_keys_and_values_alone(heads, kv_heads, device, dtype, rng):
    """As columns of wider rows, which stay as they are beside them."""
    kernels, table = ManyRows(device, Shape(6, 2, 64), dtype), angles(64, 10)
    width, slots = (heads + 2 * kv_heads) * 64, [3, -1, 0]
    qkv, positions = random(rng, (3, width + 40), dtype), np.array([9, 4, 0])
    array, kv = device.asarray(qkv.copy()), poisoned(device, (2, 2, 2, 16, 64), dtype)
    meta, on_device = meta_of(integers(device, positions), integers(device, slots)), device.asarray(table)
    kernels.rope_kv(array[:, 16 : 16 + width], kv, meta, on_device, q=heads > 0, kv_too=kv_heads > 0)
    got, inner = device.to_host(array), qkv[:, 16 : 16 + width]
    qkv[:, 16 : 16 + heads * 64] = rope(inner[:, : heads * 64], positions, table)
    assert_close(got, qkv)
    k, v = rope(inner[:, :128], positions, table).astype(dtype), inner[:, 128:]
    expected = expected_cache(k, v, kv.shape, slots if kv_heads else [-1] * 3)
    assert_close(device.to_host(kv), expected)


@pytest.mark.parametrize("hidden", [64, 7, 300])
def test_rows_go_back(hidden, device, dtype, rng):
    kernels, rows, x = ManyRows(device, Shape(), dtype), [8, 0, 3], random(rng, (9, hidden), dtype)
    array, new = device.asarray(x.copy()), random(rng, (3, hidden), dtype)
    kernels.put_rows(device.asarray(new), integers(device, rows), array)
    x[rows] = new
    np.testing.assert_array_equal(device.to_host(array), x)


# ---- the last layer


@pytest.fixture(scope="module")
def model(device) -> tuple[Any, Any]:
    folder = DATA / "tiny" / "tiny"
    config = ModelConfig.from_folder(folder)
    return config, load_weights(folder, config, device, DTYPES["float32"])


class LastRowsOnly(Running):
    """Steps that say of each request that only its last row is read."""

    def plan(self, new: list[list[int]], every_row: bool = False) -> Any:
        tokens, meta, buffers = super().plan(new, every_row)
        starts, ones = integers(self.device, range(len(new) + 1)), [1] * len(new)
        positions, nowhere = (integers(self.device, [n - less for n in meta.seq_lens_host]) for less in (1, 2**30))
        meta.last = StepMeta(
            positions, nowhere, starts, meta.seq_lens, meta.block_table, meta.logits_indices, ones, meta.seq_lens_host
        )
        return tokens, meta, buffers


def run(kind: type[Running], device: Any, model: Any, ops: Ops, *steps: list[list[int]]) -> list[np.ndarray]:
    config, weights = model
    lengths = [sum(len(step[r]) for step in steps) for r in range(len(steps[0]))]
    running = kind(device, config, weights, ops, lengths)
    return [running.step(step) for step in steps]


STEPS = [[5, 17, 300, 2], [9, 9], [100, 101, 102, 103, 104, 105, 106]], [[1, 2, 3], [4, 5, 6, 7], [8]]


def test_the_last_layer_for_last_rows_only(model, device, monkeypatch):
    """Logits are the same, in the steps after too: keys and values of the others are all there."""
    ops, taken = TunedOps(device, model[0], np.float32), []
    put_rows = ops._many.put_rows

    def noted(few: Any, rows: Any, x: Any) -> None:
        taken.append(len(rows))
        put_rows(few, rows, x)

    monkeypatch.setattr(ops._many, "put_rows", noted)
    expected = run(Running, device, model, ops, *STEPS)
    assert not taken
    for got, want in zip(run(LastRowsOnly, device, model, ops, *STEPS), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)
    assert taken == [3, 3]


def test_a_replaced_primitive_sees_every_row(model, device):
    ops, seen = TunedOps(device, model[0], np.float32), []

    def noted(gate_up: Any, out: Any) -> Any:
        seen.append(len(gate_up))
        return ops.silu_mul(gate_up, out)

    run(LastRowsOnly, device, model, ops.replace(silu_mul=noted), STEPS[0])
    assert seen == [13] * model[0].num_hidden_layers
