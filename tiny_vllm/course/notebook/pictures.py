"""A figure in the notebook: PNG and alt text; and, when the pages are built, the page's SVG from the same arrays."""

from __future__ import annotations

import os
from pathlib import Path

from tiny_vllm.course.figures import Figure, png, save_svg

FOLDER = "TINY_VLLM_FIGURES"  # where the builder wants figures/<name>.svg


def display(figure: Figure) -> None:
    """Put the picture under the cell; a reader without pictures gets its alt text."""
    from IPython.display import display as put

    put({"image/png": png(figure), "text/plain": figure.alt}, raw=True, metadata={"image/png": {"alt": figure.alt}})
    if folder := os.environ.get(FOLDER):
        save_svg(figure, Path(folder))
