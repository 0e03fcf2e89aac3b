"""silu_mul: gate first, and no NaN where exp overflows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cases import SCALES, assert_close, poisoned, random
from tiny_vllm.reference.ops import silu_mul


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 7), (2, 255), (2, 256), (5, 257), (1, 1536)])
def test_silu_mul(rows, width, scale, make, device, dtype, rng):
    x = random(rng, (rows, 2 * width), dtype)
    x[:, :width] *= np.asarray(scale, dtype)  # only the gate: a product of two large halves is no half
    ops, gate_up, out = make(), device.asarray(x), poisoned(device, (rows, width), dtype)
    with device.no_allocation():
        assert ops.silu_mul(gate_up, out=out) is out
    assert_close(device.to_host(out), silu_mul(x))


def test_far_from_zero(make, device, dtype):
    """exp(-gate) is inf on the left, 0 on the right."""
    gate = np.array([-60000, -100, -89, -88, -20, 0, 20, 88, 89, 100, 60000], np.float32)
    x = np.concatenate([gate, np.full(len(gate), 0.5, np.float32)])[None].astype(dtype)
    out = device.to_host(make().silu_mul(device.asarray(x)))
    assert_close(out, silu_mul(x))
    assert not out[0, :2].any() and out[0, -1] == x[0, len(gate) - 1] * dtype.type(0.5)


def test_70_000_rows(make, device, dtype, rng):
    x = random(rng, (70_000, 2), dtype)
    assert_close(device.to_host(make().silu_mul(device.asarray(x))), silu_mul(x))
