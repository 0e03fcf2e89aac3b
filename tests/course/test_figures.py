"""Figures: the committed SVGs are the same bytes at each run, PNGs are small, a missing extra is named."""

from __future__ import annotations

import io
import itertools
import sys

import numpy as np
import pytest

from chapters._figures import COLOURS, STYLES, Figure
from tiny_vllm.course import figures
from tiny_vllm.errors import UserError

pytest.importorskip("matplotlib")


def lines(axes):
    for number, style in enumerate(STYLES):
        axes.plot(np.arange(9), np.arange(9) * number, label=f"line {number}", **style)
    axes.legend()


FIGURE = Figure("lines", "seven lines, each steeper than the last", "line 6 ends at 48", lines)


def test_an_svg_is_the_same_at_each_run(tmp_path):
    path = figures.save_svg(FIGURE, tmp_path / "figures")
    assert path.name == "lines.svg" and path.read_text() == figures.svg(FIGURE)
    assert "<dc:date>" not in path.read_text() and "<text" not in path.read_text()
    assert not any(line.endswith(" ") for line in path.read_text().splitlines())


def test_a_png_is_six_inches_wide_and_small():
    from PIL import Image

    data = figures.png(FIGURE)
    assert len(data) <= 25 * 1024 and Image.open(io.BytesIO(data)).size == (600, 260)


def test_a_png_that_is_too_large_is_refused(rng):
    noise = Figure("noise", "noise", "noise", lambda axes: axes.imshow(rng.normal(size=(400, 900)), aspect="auto"))
    with pytest.raises(UserError, match=r"figure noise takes \d+ bytes as PNG; draw less of it: 25600 at most"):
        figures.png(noise)


def test_panels_stand_side_by_side():
    def both(axes):
        left, right = axes
        left.plot([0, 1], **STYLES[0])
        right.plot([1, 0], **STYLES[1])

    assert figures.png(Figure("two", "two lines", "they cross", both, panels=2)).startswith(b"\x89PNG")


def test_the_readers_own_settings_stay():
    import matplotlib

    before = matplotlib.rcParams["font.size"]
    with matplotlib.rc_context({"font.size": 31}):
        figures.png(FIGURE)
        assert matplotlib.rcParams["font.size"] == 31
    assert matplotlib.rcParams["font.size"] == before


def test_colours_stay_apart_in_grey():
    """Neighbours in the order differ in luminance (Rec. 709), so that a grey print still tells them apart."""

    def luminance(colour):
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    values = [luminance(colour) for colour in COLOURS]
    assert min(abs(a - b) for a, b in itertools.pairwise(values)) > 0.05


def test_without_matplotlib_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r'pip install "tiny-vllm\[notebooks\]"'):
        figures.png(FIGURE)
