"""What stands before the lesson in every generated notebook: what this file is, and how Colab gets the course."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat

from tiny_vllm.course.chapter import Chapter

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
MASTER_COPY, COLAB = "master-copy", "colab"  # tags; `course start` leaves cells with the first one out

_NOTICE = """\
> **This is a generated master copy**: open your own with `tiny-vllm course start {number}`, which puts one into
> `work/`.
>
> It is built from [the chapter's page]({repository}/blob/{tag}/chapters/{name}/README.md), and what you change here is
> overwritten. Without an installation, [open it in Colab]({colab}): your answers then live in the notebook's cells;
> save a copy in your Drive to keep them."""

_SETUP = """\
# On Colab, fetch the course and install it; anywhere else this does nothing.
import os, subprocess, sys
if "google.colab" in sys.modules and not os.path.exists("tiny-vllm"):
    subprocess.run("git clone -q --depth 1 --branch {tag} {repository} tiny-vllm", shell=True, check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "-e", "tiny-vllm"], check=True)
    sys.path.insert(0, os.path.abspath("tiny-vllm"))"""


def first_cells(chapter: Chapter) -> list[Any]:
    """The notice and the Colab cell. No CUDA extra is installed: Colab has a CuPy of its own, and two break both."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    repository = project.get("urls", {}).get("Repository", "https://github.com/OWNER/tiny-vllm")
    tag = f"v{project['version']}"
    place = repository.removeprefix("https://github.com/")
    notebook = f"{chapter.name.removeprefix('ch')}.ipynb"
    colab = f"https://colab.research.google.com/github/{place}/blob/{tag}/notebooks/{notebook}"
    values = {"number": chapter.number, "name": chapter.name, "repository": repository, "tag": tag, "colab": colab}
    notice = nbformat.v4.new_markdown_cell(_NOTICE.format(**values), metadata={"tags": [MASTER_COPY]})
    return [notice, nbformat.v4.new_code_cell(_SETUP.format(**values), metadata={"tags": [COLAB]})]
