"""Products by the quickest algorithm: the numbers of any other; and how it is found."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.ops.cases import DTYPES, random
from tiny_vllm.device.cublas_lt import REPEATS, quickest


class Clock:
    """Launches that take the given times, and events that tell them."""

    def __init__(self, *milliseconds: float) -> None:
        self.now, self.runs = 0.0, [partial(self.pass_by, ms) for ms in milliseconds]

    def pass_by(self, ms: float) -> None:
        self.now += ms

    def event(self) -> Any:
        clock = self

        class Event:
            def record(self) -> None:
                self.at = clock.now

            def synchronize(self) -> None:
                """It has come."""

            def elapsed_ms(self, start: Any) -> float:
                return (self.at - start.at) / REPEATS

        return Event()


@pytest.mark.parametrize(
    ("times", "best"), [((5,), 0), ((5, 4, 3, 6), 2), ((5, 5, 5), 0), ((5, 4.99, 7), 0), ((5, 4.9, 4.99), 1)]
)
def test_the_quickest(times, best):
    clock = Clock(*times)
    assert quickest(clock.runs, clock.event) == best


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("shape", [(1024, 512, 256), (2000, 320, 1024), (4096, 2048, 512)], ids=str)
def test_a_tuned_shape(shape, add, device, rng):
    """The same bits before and after, on column views too; fewer rows are left alone."""
    if device.name != "cuda":
        pytest.skip("needs a GPU")
    dtype, (m, n, k) = DTYPES["bfloat16"], shape
    x, weight, start = random(rng, (m, k), dtype), random(rng, (n, k), dtype, 0.05), random(rng, (m, n + 8), dtype)
    arrays = device.asarray(weight), device.asarray(start)[:, :n]

    def product() -> np.ndarray:
        device.copy_in(arrays[1].base, start)
        device.gemm(device.asarray(x), *arrays, add)
        return device.to_host(arrays[1].base)

    expected = product()
    spoilt = device.asarray(x)
    with device.tuning():
        device.gemm(spoilt, *arrays, add)
    got = product()
    np.testing.assert_array_equal(got[:, n:].astype(np.float32), start[:, n:].astype(np.float32))
    np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=2**-7, atol=1e-2)
    with device.capture() as graph:
        device.gemm(spoilt, *arrays, add)
    device.copy_in(spoilt, x)
    device.copy_in(arrays[1].base, start)
    graph.launch()
    np.testing.assert_array_equal(device.to_host(arrays[1].base).astype(np.float32), got.astype(np.float32))
