"""What the chapters' tests share: device arrays whose outputs are poisoned, and a small model's shape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Bench:
    """Arrays in and out of the device."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def put(self, values: Any, dtype: Any = np.float32) -> Any:
        return self.device.asarray(np.asarray(values).astype(dtype))

    def ints(self, values: Any) -> Any:
        return self.put(values, np.int32)

    def poisoned(self, *shape: int, dtype: Any = np.float32) -> Any:
        """An output that nothing has written yet: NaN, or for integers a number that no test expects."""
        return self.put(np.full(shape, np.nan if np.dtype(dtype).kind not in "iu" else -77777), dtype)

    def get(self, array: Any) -> np.ndarray:
        """On the host; 16-bit floats become float32."""
        host = self.device.to_host(array)
        return host if host.dtype.kind in "iu" else host.astype(np.float32)


@pytest.fixture
def bench(device: Any) -> Bench:
    return Bench(device)


@pytest.fixture
def shape() -> SimpleNamespace:
    """Six query heads on two key/value heads, odd sizes: what a config gives to the ops."""
    return SimpleNamespace(
        vocab_size=71,
        hidden_size=40,
        intermediate_size=52,
        num_hidden_layers=1,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
    )


@pytest.fixture
def assert_close() -> Any:
    """Equal within float32's rounding over a sum, relative to the largest value; for 16 bits, within their own."""

    def check(got: np.ndarray, expected: Any, dtype: Any = np.float32, rtol: float = 5e-6) -> None:
        expected = np.asarray(expected, np.float64)
        assert got.shape == expected.shape
        assert np.isfinite(got).all(), f"{int((~np.isfinite(got)).sum())} of {got.size} are not finite"
        rtol = {np.dtype(np.float32): rtol, BFLOAT16: 2.0**-8, np.dtype(np.float16): 2.0**-10}[np.dtype(dtype)]
        step = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        limit = rtol * float(np.abs(expected).max(initial=0)) + step
        worst = np.abs(got - expected).max(initial=0)
        assert worst <= limit, f"off by {worst:.3g}, allowed {limit:.3g}"

    return check
