"""What a chapter's figures.py gives back: a picture that is not drawn yet, with the words that stand for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# The colours of Okabe and Ito (2008), in an order that stays apart in grey; a mark and a dash tell them apart besides.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "x")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
STYLES = tuple({"color": c, "marker": m, "linestyle": d} for c, m, d in zip(COLOURS, MARKERS, DASHES))


@dataclass(frozen=True)
class Figure:
    """One idea as a picture.

    name: of the page's file, figures/<name>.svg. alt: what a screen reader says of the picture. sentence: what it
    shows, computed from the same arrays and printed below it. draw: puts it on Matplotlib axes, on a tuple of them
    with panels > 1, side by side. height: inches, of 6 inches width.
    """

    name: str
    alt: str
    sentence: str
    draw: Callable[[Any], None]
    height: float = 2.6
    panels: int = 1


def without_ticks(axes: Any) -> None:
    """A picture of places in a row has no scale: no ticks, and no lines to carry them."""
    axes.set_xticks([])
    axes.set_yticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
