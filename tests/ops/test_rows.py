"""embed and take_rows copy rows, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cases import DTYPES, SETS, Shape, integers, poisoned, random

SHAPES = [(1, 7, 3), (5, 11, 64), (33, 97, 257), (16, 2, 1), (64, 50, 576)]


@pytest.mark.parametrize(("count", "rows", "hidden"), SHAPES)
@pytest.mark.parametrize("op", ["embed", "take_rows"])
def test_rows_are_copied(op, count, rows, hidden, make, device, dtype, rng):
    x = random(rng, (rows, hidden), dtype)
    wanted = np.append(rng.integers(0, rows, count - 1), rows - 1)
    table, indices, out = device.asarray(x), integers(device, wanted), poisoned(device, (count, hidden), dtype)
    args = (indices, table) if op == "embed" else (table, indices)
    ops = make()
    with device.no_allocation():
        assert getattr(ops, op)(*args, out=out) is out
    np.testing.assert_array_equal(device.to_host(out), x[wanted])


@pytest.mark.parametrize("op", ["embed", "take_rows"])
def test_out_is_allocated_on_request(op, make, device, dtype, rng):
    x = random(rng, (9, 5), dtype)
    table, indices = device.asarray(x), integers(device, [8, 0, 8])
    args = (indices, table) if op == "embed" else (table, indices)
    out = getattr(make(), op)(*args)
    assert out.dtype == dtype
    np.testing.assert_array_equal(device.to_host(out), x[[8, 0, 8]])


@pytest.mark.parametrize("name", SETS)
def test_70_000_tokens(name, device, rng):
    """More rows than a grid may have in y or z."""
    x = random(rng, (50, 2), DTYPES["float32"])
    wanted = rng.integers(0, 50, 70_000)
    ops = SETS[name](device, Shape(), np.float32)
    out = ops.embed(integers(device, wanted), device.asarray(x))
    np.testing.assert_array_equal(device.to_host(out), x[wanted])


@pytest.mark.parametrize("name", ["reference", "tuned"])
def test_a_step_may_want_no_logits(name, device, rng):
    ops = SETS[name](device, Shape(), np.float32)
    out = ops.take_rows(device.asarray(random(rng, (5, 8), DTYPES["float32"])), integers(device, []))
    assert out.shape == (0, 8)
