"""Chapter 00: every element has exactly one thread."""

from __future__ import annotations

import numpy as np
import pytest

from chapters.ch00_hello_gpu.stage import num_blocks, vector_add, which_thread


@pytest.mark.parametrize("threads", [1, 32, 128, 1024])
@pytest.mark.parametrize("n", [1, 31, 128, 129, 1000])
def test_vector_add(device, rng, n, threads):
    a, b = rng.normal(size=n).astype(np.float32), rng.normal(size=n).astype(np.float32) * 100
    np.testing.assert_array_equal(vector_add(device, a, b, threads), a + b)


def test_vector_add_of_nothing(device):
    assert vector_add(device, [], []).shape == (0,)


def test_which_thread(device):
    block, thread = which_thread(device, 300, threads=128)
    assert [block[i] for i in (0, 127, 128, 255, 256, 299)] == [0, 0, 1, 1, 2, 2]
    assert [thread[i] for i in (0, 127, 128, 255, 256, 299)] == [0, 127, 0, 127, 0, 43]


@pytest.mark.parametrize("n, threads, blocks", [(1, 128, 1), (128, 128, 1), (129, 128, 2), (1000, 32, 32)])
def test_num_blocks(n, threads, blocks):
    assert num_blocks(n, threads) == blocks
