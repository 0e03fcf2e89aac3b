"""Chapter 03's pictures: what they say is computed from what they draw."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from chapters.ch03_rms_norm import figures
from tests.conftest import DATA
from tiny_vllm.course.figures import svg
from tiny_vllm.course.notebook.real_model import load_model
from tiny_vllm.reference.llama import Oracle
from tiny_vllm.reference.ops import rms_norm

SQUARES = np.array([1, 1, 25, 9, 4, 0, 16, 16])


def test_halving_ends_with_the_sum():
    steps = [step.tolist() for step in figures.halvings(SQUARES)]
    assert steps == [SQUARES.tolist(), [5, 1, 41, 25], [46, 26], [72]]
    assert figures.tree(SQUARES).sentence == "3 steps, 4+2+1 additions, 1 of 8 threads busy in the last: 72"


def test_the_owners_are_named():
    figure = figures.owners(np.arange(20) % 8)
    assert figure.sentence == "thread 3 owns 3 11 19; thread 4 owns 4 12"


def test_the_table_shows_what_still_counts():
    partials = np.array([SQUARES, [5, 1, 41, 25, 4, 0, 16, 16]])
    assert figures.table(partials).splitlines()[1].split() == ["barrier", "2:", "5", "1", "41", "25", *"...."]


def test_a_stream_is_what_each_layer_reads():
    """On a tiny checkpoint, against the oracle's embedding; without the norm the first reading is the same."""
    folder = DATA / "tiny" / "tiny-odd"
    model, ids = load_model(str(folder)), [3, 1, 4, 1, 5]
    stream = figures.watch(model, ids)
    assert len(stream.rms) == model.config.num_hidden_layers
    first = Oracle(folder, np.float64).weights["model.embed_tokens.weight"][ids[0]]
    assert stream.rms[0] == pytest.approx(np.sqrt((first**2).mean()), rel=1e-6)
    without = figures.watch(model, ids, figures.nothing)
    assert without.rms[0] == stream.rms[0]
    assert without.rms[1] != stream.rms[1]


def test_half_overflows_where_squares_do():
    x, weight = np.full((2, 576), 3, np.float32), np.full(576, 2, np.float32)
    x[1] = 30  # 576 * 900 is above 65,504
    got = figures.summed_in_half(x, weight, 1e-5)
    np.testing.assert_allclose(got[0], rms_norm(x, weight, 1e-5)[0], rtol=1e-3)
    assert (got[1] == 0).all()


def test_the_growth_names_the_layer_of_the_first_nan():
    with_norm = figures.Stream((0.5, 2, 3, 4, 5), 9)
    figure = figures.growth(with_norm, figures.Stream((0.5, 10, 1e9, 1e20, np.nan), np.nan))
    assert (
        figure.sentence
        == "without the norm: 1.0e+20 after layer 3, NaN after layer 4. with it: 0.50 at the start, 5 at most"
    )


def test_a_rung_that_writes_nothing_has_no_counts():
    def run(y):
        counts = [
            SimpleNamespace(requests=20, lanes=640, sectors_a_request=4.0),
            SimpleNamespace(requests=10, lanes=10, sectors_a_request=32.0),  # of one lane: its warp asks all the same
        ]
        return type("Run", (), {"report": SimpleNamespace(of=lambda kind: counts), "__getitem__": lambda *_: y})()

    runs = {"tree": run(np.ones(3)), "warp": run(np.full(3, np.nan)), "untraced": run(np.ones(3))}
    text = figures.rungs(runs, {"tree": 7, "warp": 0}, {"tree": 2, "warp": 2, "untraced": 2})
    assert text.splitlines()[1].split() == ["tree", "15", "32", "7"]
    assert text.splitlines()[2].split() == ["warp", "not", "solved", "yet"]
    assert text.splitlines()[3].split() == ["untraced", "not", "solved", "yet"]


@pytest.mark.parametrize("name", ["growth", "owners", "tree"])
def test_the_pictures_can_be_drawn(name):
    pytest.importorskip("matplotlib")
    stream, without = figures.Stream((1.0,) * 14, 1), figures.Stream((1.0, 10, 1e9, 1e20, np.nan, np.nan), np.nan)
    made = {
        "growth": figures.growth(stream, without),
        "owners": figures.owners(np.arange(20) % 8),
        "tree": figures.tree(SQUARES),
    }
    assert svg(made[name]).startswith("<?xml")
