"""Sphinx's settings of the book: the pages of docs/, and the lessons as executed notebooks (`make book`)."""

from __future__ import annotations

project = "tiny-vllm"
author = "The tiny-vllm authors"
copyright = "The tiny-vllm authors. Code Apache-2.0, texts and figures CC BY 4.0"

extensions = ["myst_nb"]
html_theme = "furo"
html_title = "tiny-vllm"
exclude_patterns = ["_build", "**.ipynb_checkpoints"]

# tools/build_notebooks.py ran them; run again here, they could show other numbers than the tests saw.
nb_execution_mode = "off"
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
