"""Lists of ints looked at in one pass: the same answers as one by one."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tiny_vllm.engine.int32 import bounds, bounds_of_plain, int32_array

LARGE = 2**31


def test_an_array(rng):
    values = rng.integers(-LARGE, LARGE, 1000).tolist()
    assert int32_array(values).tolist() == int32_array(tuple(values)).tolist() == values
    assert int32_array(values).dtype == np.int32
    assert int32_array([]).tolist() == []


@pytest.mark.parametrize("wrong", [LARGE, -LARGE - 1, 1.0, None, "1"])
def test_what_is_no_int32(wrong):
    with pytest.raises(struct.error):
        int32_array([1, 2, wrong])


@pytest.mark.parametrize("items", [[0], [1, -1, LARGE - 1, -LARGE], [5] * 1000])
def test_plain_ints(items):
    assert bounds_of_plain(items) == (min(items), max(items))


def test_nothing_has_no_bounds():
    assert bounds_of_plain([]) is None


@pytest.mark.parametrize(
    "odd", [True, 1.0, None, "", b"", (), [], "1234", LARGE, np.int32(1), np.int64(1), np.bool_(True), object(), {}]
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_that_is_none(odd, place):
    """Whatever takes as many bytes as an int, or more ones that take fewer beside one that takes more."""
    items = [1, 2]
    items.insert(place, odd)
    assert bounds_of_plain(items) is None
    assert bounds_of_plain([*items, *[True] * 4, LARGE, 2.0]) is None


def test_bounds(rng):
    values = rng.integers(-1000, 1000, 99).tolist()
    assert bounds(values) == (min(values), max(values))
    assert bounds([*values, 10**20]) == (min(values), 10**20)
