"""rms_norm: rows of any length and size. Normal inputs alone cannot see an epsilon; rows of 1e-3 and of zeros do."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cases import DTYPES, SCALES, SETS, Shape, assert_close, poisoned, random
from tiny_vllm.reference.ops import rms_norm

SHAPES = [(1, 1), (2, 7), (3, 33), (1, 64), (4, 128), (3, 576), (5, 1000), (2, 8192)]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(shape, scale, make, device, dtype, rng):
    x, weight = random(rng, shape, dtype, scale), random(rng, shape[1:], dtype)
    ops, arrays, out = make(), (device.asarray(x), device.asarray(weight)), poisoned(device, shape, dtype)
    with device.no_allocation():
        assert ops.rms_norm(*arrays, 1e-5, out=out) is out
    assert_close(device.to_host(out), rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 1e-2])
def test_a_row_of_zeros_stays_zeros(eps, make, device, dtype, rng):
    x, weight = random(rng, (3, 40), dtype, 1e-3), random(rng, (40,), dtype)
    x[1] = 0
    out = device.to_host(make().rms_norm(device.asarray(x), device.asarray(weight), eps))
    assert_close(out, rms_norm(x, weight, eps))
    assert not out[1].any()


def test_one_bad_row_spoils_no_other(make, device, dtype, rng):
    x, weight = random(rng, (3, 64), dtype), random(rng, (64,), dtype)
    clean = rms_norm(x, weight, 1e-5)
    x[1, 5] = np.nan
    out = device.to_host(make().rms_norm(device.asarray(x), device.asarray(weight), 1e-5))
    assert np.isnan(out[1].astype(np.float32)).all()
    assert_close(out[[0, 2]], clean[[0, 2]])


def test_70_000_rows(make, device, dtype, rng):
    x, weight = random(rng, (70_000, 3), dtype), random(rng, (3,), dtype)
    out = device.to_host(make().rms_norm(device.asarray(x), device.asarray(weight), 1e-5))
    assert_close(out, rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("shape", [(3, 8), (2, 24), (1, 64), (4, 256), (3, 264), (2, 2048), (1, 4096)], ids=str)
def test_a_vector_a_thread(shape, device, dtype, rng):
    """What a GPU runs where rows are whole vectors."""
    ops = SETS["tuned"](device, Shape(), dtype)
    ops._vectors_of_rows = True
    x, weight = random(rng, shape, dtype), random(rng, shape[1:], dtype)
    out = poisoned(device, shape, dtype)
    ops.rms_norm(device.asarray(x), device.asarray(weight), 1e-5, out=out)
    assert_close(device.to_host(out), rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("threads", [16, 32, 96, 256, 1024])
def test_threads(threads, device, rng):
    """The tuned kernel with the block of an emulator and with that of a GPU."""
    ops = SETS["tuned"](device, Shape(), np.float32)
    ops._waiting_threads, ops._vectors_of_rows = threads, False
    x, weight = random(rng, (3, 1000), DTYPES["float32"]), random(rng, (1000,), DTYPES["float32"])
    out = device.to_host(ops.rms_norm(device.asarray(x), device.asarray(weight), 1e-5))
    assert_close(out, rms_norm(x, weight, 1e-5))
