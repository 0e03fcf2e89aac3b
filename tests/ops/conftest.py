"""Every test that takes `make` runs for each set of operations, in each element type."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.ops.cases import DTYPES, SETS, Make, Shape
from tiny_vllm.ops.base import Ops


@cache
def _build(name: str, device: Any, shape: Shape, dtype: np.dtype) -> Ops:
    return SETS[name](device, shape, dtype)


@pytest.fixture(params=SETS)
def set_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    return DTYPES[request.param]


@pytest.fixture
def make(set_name: str, dtype: np.dtype, device: Any) -> Make:
    """make(head_dim=64, ...): the set, for a model of that shape."""
    return lambda **shape: _build(set_name, device, Shape(**shape), dtype)
