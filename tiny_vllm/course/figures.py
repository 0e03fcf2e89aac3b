"""The one place that draws: every picture of the course in one style, 6 inches wide, 9 pt, readable in grey.

Matplotlib is imported when the first picture is drawn, so that everything else works without it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tiny_vllm.errors import UserError

WIDTH, DOTS_PER_INCH = 6.0, 100
PNG_COLOURS = 64
PNG_BYTES = 25 * 1024  # what a notebook keeps of one figure
STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",  # comes with Matplotlib
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "svg.fonttype": "path",  # letters as curves: the same widths in every browser
    "svg.hashsalt": "tiny-vllm",  # the same identifiers at each run
}


class Figure(Protocol):
    """A picture that is not drawn yet; a chapter makes it (chapters/_figures.py)."""

    @property
    def name(self) -> str: ...
    @property
    def alt(self) -> str: ...
    @property
    def sentence(self) -> str: ...
    @property
    def draw(self) -> Callable[[Any], None]: ...
    @property
    def height(self) -> float: ...
    @property
    def panels(self) -> int: ...


def png(figure: Figure) -> bytes:
    """The picture as a PNG of 600 dots width; UserError when it takes more than 25 KB."""
    data = _with_few_colours(_rendered(figure, "png", dpi=DOTS_PER_INCH))
    if len(data) > PNG_BYTES:
        raise UserError(f"figure {figure.name} takes {len(data)} bytes as PNG; draw less of it: {PNG_BYTES} at most")
    return data


def svg(figure: Figure) -> str:
    """The picture as an SVG text, the same bytes at each run of one Matplotlib."""
    text = _rendered(figure, "svg", metadata={"Date": None, "Creator": None}).decode()
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


def save_svg(figure: Figure, folder: Path) -> Path:
    """Write folder/<name>.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{figure.name}.svg"
    path.write_text(svg(figure), encoding="utf-8")
    return path


def _rendered(figure: Figure, kind: str, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    with _drawn(figure) as drawn:
        drawn.savefig(buffer, format=kind, **settings)
    return buffer.getvalue()


def _with_few_colours(data: bytes) -> bytes:
    """The same PNG with a palette: a third of the bytes."""
    from PIL import Image  # Matplotlib's own dependency

    buffer = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").quantize(PNG_COLOURS).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


@contextmanager
def _drawn(figure: Figure) -> Iterator[Any]:
    """The picture as a Matplotlib figure, in the course's style, without touching the reader's own settings."""
    matplotlib, drawing = _matplotlib()
    with matplotlib.rc_context(matplotlib.rcParamsDefault | STYLE):
        whole = drawing.Figure(figsize=(WIDTH, figure.height), layout="constrained")
        axes = whole.subplots(1, figure.panels)
        figure.draw(axes if figure.panels == 1 else tuple(axes))
        yield whole


def _matplotlib() -> tuple[Any, Any]:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise UserError('figures need Matplotlib; install it: pip install "tiny-vllm[notebooks]"') from None
    return matplotlib, matplotlib.figure
