"""Arithmetic of the figures, on times that are given."""

from __future__ import annotations

import pytest

from tiny_vllm.engine.figures import Figures, Stopwatch


def test_rates_count_the_steps_after_the_first_token():
    stopwatch = Stopwatch(started=10.0, ticks=[12.0, 12.5, 13.0, 14.0])
    figures = stopwatch.figures(weight_bytes=2_000_000_000, bandwidth=12e9)
    assert figures.num_tokens == 4
    assert figures.time_to_first_token == 2.0
    assert figures.tokens_per_second == 1.5
    assert figures.weights_per_second == 3e9
    assert figures.bandwidth_share == 0.25
    expected = "4 tokens, 1.5 tokens/s, first token after 2.00 s, weights read at 3 GB/s: 25% of this machine's 12 GB/s"
    assert str(figures) == expected


def test_one_token_has_no_rate():
    figures = Stopwatch(started=1.0, ticks=[1.25]).figures(1000, 1e9)
    assert str(figures) == "1 token, first token after 0.25 s"
    assert figures.tokens_per_second is figures.weights_per_second is figures.bandwidth_share is None


def test_ticks_go_forward():
    stopwatch = Stopwatch()
    stopwatch.tick()
    stopwatch.tick()
    assert stopwatch.started <= stopwatch.ticks[0] <= stopwatch.ticks[1]


def test_json_names_units():
    figures = Figures(3, 0.5, 2.0, 100, 1000.0)
    assert figures.as_dict() == {
        "num_tokens": 3,
        "time_to_first_token_s": 0.5,
        "tokens_per_second": 2.0,
        "weights_bytes_per_second": 200.0,
        "bandwidth_bytes_per_second": 1000.0,
        "bandwidth_share": pytest.approx(0.2),
    }
