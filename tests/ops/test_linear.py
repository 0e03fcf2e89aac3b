"""linear: x @ weight.T with sums in float32, into any type, with and without what is there already."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cases import DTYPES, RTOL, SCALES, SETS, Shape, assert_close, poisoned, random
from tiny_vllm.reference.ops import linear

ATOL = 1e-6  # float32 sums of 40 products of order 1
SHAPES = [(1, 1, 1), (1, 64, 96), (3, 7, 5), (5, 33, 129), (17, 576, 64)]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_linear(rows, inner, columns, scale, make, device, dtype, rng):
    x, weight = random(rng, (rows, inner), dtype, scale), random(rng, (columns, inner), dtype, inner**-0.5)
    ops, arrays = make(), (device.asarray(x), device.asarray(weight))
    out = poisoned(device, (rows, columns), dtype)
    with device.no_allocation():
        assert ops.linear(*arrays, out=out) is out
    assert_close(device.to_host(out), linear(x, weight))


def test_logits_are_float32(make, device, dtype, rng):
    """Rounded to bfloat16, neighbours at 16 to 32 tie."""
    x, weight = random(rng, (3, 64), dtype), random(rng, (50, 64), dtype)
    out = poisoned(device, (3, 50), np.float32)
    make().linear(device.asarray(x), device.asarray(weight), out=out)
    assert_close(device.to_host(out), linear(x, weight), rtol=1e-4)


def test_add_is_the_residual(make, device, dtype, rng):
    x, weight, there = random(rng, (5, 40), dtype), random(rng, (24, 40), dtype), random(rng, (5, 24), dtype, 10)
    out = device.asarray(there.copy())
    make().linear(device.asarray(x), device.asarray(weight), out=out, add=True)
    product, before = linear(x, weight), there.astype(np.float32)
    limit = RTOL[dtype.name] * (np.abs(product) + np.abs(before)) + ATOL  # cuBLAS may round the product before it adds
    assert (np.abs(device.to_host(out).astype(np.float32) - (product + before)) <= limit).all()


def test_out_is_overwritten_not_scaled(make, device, dtype, rng):
    """beta = 0 must not read: 0 * NaN is NaN."""
    x, weight = random(rng, (2, 8), dtype), random(rng, (4, 8), dtype)
    out = poisoned(device, (2, 4), dtype)
    make().linear(device.asarray(x), device.asarray(weight), out=out)
    assert np.isfinite(device.to_host(out).astype(np.float32)).all()


@pytest.mark.parametrize("kind", DTYPES)
def test_read_only_weights(kind, device, rng):
    """The engine's weights are read-only, of which the emulator keeps a widened copy: two weights stay two."""
    dtype = DTYPES[kind]
    ops = SETS["tuned"](device, Shape(), dtype)
    x = random(rng, (3, 16), dtype)
    for _ in range(3):
        weight = random(rng, (8, 16), dtype)
        array = device.asarray(weight)
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
        assert_close(device.to_host(ops.linear(device.asarray(x), array)), linear(x, weight))
        del array
