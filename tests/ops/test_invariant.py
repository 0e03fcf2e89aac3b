"""The product of batch-invariant mode: the bits of a row do not depend on the rows beside it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.ops.cases import Shape, poisoned, random, step_meta
from tiny_vllm.device.source import as_dtype
from tiny_vllm.errors import UserError
from tiny_vllm.ops.invariant import SHORT_ROWS, InvariantOps
from tiny_vllm.ops.tuned import TunedOps

# Around the short kernel's 16 rows and the tall one's 64
HEIGHTS = [1, 2, 15, SHORT_ROWS, SHORT_ROWS + 1, 33, 63, 64, 65, 130]


def product(ops, device, x, weight, kind, there=None):
    """x @ weight.T with every kind of result, on the host."""
    out = poisoned(device, (len(x), len(weight)), kind) if there is None else device.asarray(there.copy())
    ops.linear(device.asarray(x), device.asarray(weight), out=out, add=there is not None)
    return device.to_host(out)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("inner", "columns"), [(1, 1), (31, 33), (32, 64), (100, 509), (257, 65)])
def test_rows_do_not_depend_on_their_number(inner, columns, scale, device, dtype, rng):
    """The first rows, and the last ones, of any number of them; into the element type, float32, and added."""
    ops = InvariantOps(device, Shape(), dtype)
    x, weight = random(rng, (130, inner), dtype, scale), random(rng, (columns, inner), dtype, inner**-0.5)
    there = random(rng, (130, columns), dtype, 3 * scale)
    for kind, before in ((dtype, None), (np.float32, None), (dtype, there)):
        whole = product(ops, device, x, weight, kind, before)
        assert np.isfinite(whole.astype(np.float32)).all()
        for height in HEIGHTS:
            for rows in (slice(0, height), slice(130 - height, 130)):
                few = product(ops, device, x[rows], weight, kind, None if before is None else before[rows])
                assert few.tobytes() == whole[rows].tobytes(), (kind, height)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize(("inner", "columns"), [(8, 1), (40, 33), (136, 65), (264, 20)])
def test_rows_on_tensor_cores_do_not_depend_on_their_number(inner, columns, kind, device, rng):
    """Across the three tiles, 16 x 16, 64 x 32 and 64 x 64; right to the rounding of the sums."""
    dtype = as_dtype(kind)
    ops = InvariantOps(device, Shape(), dtype, product="mma")
    x, weight = random(rng, (130, inner), dtype), random(rng, (columns, inner), dtype, inner**-0.5)
    there = random(rng, (130, columns), dtype, 3.0)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    for result, before in ((dtype, None), (np.float32, None), (dtype, there)):
        whole = product(ops, device, x, weight, result, before)
        expected = exact if before is None else exact + before.astype(np.float64)
        rounding = 1e-5 if result == np.float32 else float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(whole.astype(np.float64), expected, rtol=rounding, atol=2e-5)
        for height in (1, 16, 17, 128, 129):
            for rows in (slice(0, height), slice(130 - height, 130)):
                few = product(ops, device, x[rows], weight, result, None if before is None else before[rows])
                assert few.tobytes() == whole[rows].tobytes(), (result, height)


def test_tensor_cores_are_refused_where_they_do_not_hold(device):
    with pytest.raises(UserError, match="product='mma' does not hold here: the element type is float32"):
        InvariantOps(device, Shape(), np.float32, product="mma")


def test_an_odd_weight_falls_back(device, rng):
    """A row that is no multiple of 16 bytes: the plain kernel, for every number of rows."""
    dtype = as_dtype("bfloat16")
    mma, plain = (InvariantOps(device, Shape(), dtype, product=each) for each in ("mma", "plain"))
    x, weight = random(rng, (20, 9), dtype), random(rng, (30, 9), dtype)
    assert (product(mma, device, x, weight, dtype) == product(plain, device, x, weight, dtype)).all()


def test_a_row_of_nan_stays_alone(device, dtype, rng):
    """What lies in the rows beside, padding of a graph for one, is nowhere in a result."""
    ops = InvariantOps(device, Shape(), dtype)
    x, weight = random(rng, (20, 40), dtype), random(rng, (50, 40), dtype)
    expected = product(ops, device, x, weight, np.float32)
    x[3:17] = np.nan
    got = product(ops, device, x, weight, np.float32)
    assert np.isnan(got[3:17]).all()
    assert got[[0, 1, 2, 17, 18, 19]].tobytes() == expected[[0, 1, 2, 17, 18, 19]].tobytes()


def test_nothing_to_do(device, dtype):
    ops = InvariantOps(device, Shape(), dtype)
    out = ops.linear(device.empty((0, 8), dtype), device.empty((4, 8), dtype))
    assert out.shape == (0, 4)


def test_attention_is_the_one_for_any_batch(device, rng):
    """Also where the paged kernels, which split contexts by the batch size, would hold."""
    config = Shape(8, 2, 64)
    ops, plain = InvariantOps(device, config, np.float16), TunedOps(device, config, np.float16, attention="plain")
    q, kv = random(rng, (3, 512), np.dtype(np.float16)), random(rng, (9, 2, 2, 16, 64), np.dtype(np.float16))
    meta = step_meta(device, [1, 2], [70, 40], [[3, 1, 8, 0, 5], [2, 7, 4]], 16)
    arrays = (device.asarray(q), device.asarray(kv), meta)
    got, expected = (device.to_host(each.attention(*arrays)) for each in (ops, plain))
    assert got.tobytes() == expected.tobytes()
