"""argmax: the lowest id of the largest logits, whatever the row holds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cases import integers
from tiny_vllm.errors import UserError
from tiny_vllm.ops.argmax import MAX_ROWS, Argmax
from tiny_vllm.reference.ops import argmax


@pytest.mark.parametrize("vocabulary", [1, 2, 15, 16, 17, 509, 1024, 1025, 49152])
def test_argmax(vocabulary, device, rng):
    logits = rng.standard_normal((5, vocabulary)).astype(np.float32)
    out = integers(device, [-7] * 5)
    array, run = device.asarray(logits), Argmax(device)
    with device.no_allocation():
        run(array, out=out)
    np.testing.assert_array_equal(device.to_host(out), logits.argmax(axis=1))


@pytest.mark.parametrize("vocabulary", [1, 3, 4, 509, 4096, 4099])
def test_the_grid_does_not_change_the_choice(device, rng, monkeypatch, vocabulary):
    """However a row is cut, ties across the cuts included; and what blocks meet in is zero again."""
    logits = rng.integers(0, 9, (5, vocabulary)).astype(np.float32)
    logits[1] = -np.inf
    logits[2, : vocabulary // 2] = np.nan
    run, array = Argmax(device), device.asarray(logits)
    expected = np.where(np.isnan(logits), -np.inf, logits).argmax(axis=1)
    expected[2] = vocabulary // 2 + logits[2, vocabulary // 2 :].argmax()
    for shape in ((4, 1), (64, 3), (512, 128), (8192, 256)):
        if device.name == "emulator" and shape[1] > 3:
            continue  # slow there
        monkeypatch.setattr(run, "_block_shape", lambda rows, vocabulary, shape=shape: shape)
        np.testing.assert_array_equal(device.to_host(run(array)), expected)
        assert not device.to_host(run._best).any() and not device.to_host(run._num_arrived).any()


def test_more_rows_than_a_launch_takes(device, rng):
    logits = rng.standard_normal((2 * MAX_ROWS + 3, 5)).astype(np.float32)
    np.testing.assert_array_equal(device.to_host(Argmax(device)(device.asarray(logits))), logits.argmax(axis=1))


def test_the_lowest_id_wins_a_tie(device, rng):
    logits = rng.integers(0, 3, (64, 300)).astype(np.float32)
    np.testing.assert_array_equal(device.to_host(Argmax(device)(device.asarray(logits))), logits.argmax(axis=1))


def test_nan_and_infinity(device):
    rows = np.full((6, 40), -np.inf, np.float32)  # row 0: nothing but -inf
    rows[1, 7] = -1e38
    rows[2] = np.nan
    rows[3] = np.nan
    rows[3, 33] = -np.inf
    rows[4, [3, 20]] = np.nan, 1.0
    rows[5, [9, 30]] = np.inf
    got = device.to_host(Argmax(device)(device.asarray(rows)))
    np.testing.assert_array_equal(got, [0, 7, 0, 33, 20, 9])
    np.testing.assert_array_equal(argmax(rows), [0, 7, 0, 33, 20, 9])


def test_no_rows_and_a_wrong_out(device):
    run = Argmax(device)
    assert run(device.asarray(np.zeros((0, 5), np.float32))).shape == (0,)
    with pytest.raises(UserError, match=r"out has shape \(3,\); wanted \(2,\)"):
        run(device.asarray(np.zeros((2, 5), np.float32)), out=integers(device, [0, 0, 0]))
