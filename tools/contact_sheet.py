"""docs/contact_sheet.png: every figure of the notebooks, in colour and in grey: python -m tools.contact_sheet."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import matplotlib
import nbformat
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parents[1]
SHEET = ROOT / "docs" / "contact_sheet.png"
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601: how bright the eye sees red, green and blue
INCHES, DOTS_PER_INCH = 6.0, 75


def figures() -> list[tuple[str, Any]]:
    """(notebook and sentence, picture (height, width, 3 or 4) in 0 to 1) of each figure cell."""
    found = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                if png := output.get("data", {}).get("image/png"):
                    found.append((path.stem, pyplot.imread(io.BytesIO(base64.b64decode(png)))[..., :3]))
    return found


def draw(pictures: list[tuple[str, Any]]) -> Any:
    """A row a figure: in colour, in grey."""
    heights = [INCHES * picture.shape[0] / picture.shape[1] for _, picture in pictures]
    size = (2 * INCHES, sum(heights) + 0.3 * len(heights))
    sheet, axes = pyplot.subplots(len(pictures), 2, figsize=size, height_ratios=heights, squeeze=False)
    for (name, picture), (left, right) in zip(pictures, axes, strict=True):
        left.imshow(picture)
        left.set_title(name, loc="left", fontsize=9)
        right.imshow(np.asarray(picture) @ LUMA, cmap="gray", vmin=0, vmax=1)
        left.set_axis_off()
        right.set_axis_off()
    sheet.tight_layout()
    return sheet


def main() -> int:
    draw(figures()).savefig(SHEET, dpi=DOTS_PER_INCH, metadata={"Software": None})
    print(SHEET.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
