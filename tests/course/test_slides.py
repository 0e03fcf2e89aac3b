"""Slides out of a page's tagged cells."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from tiny_vllm.errors import UserError
from tiny_vllm.grading.commands.slides import run, slides

PAGE = """# 42 · Sums: one number of many

Text that is on the page only.

```python tags=["nbval-check-output"]
print("no slide")
```

```text
no slide
```

## Which thread owns which column?

![Twenty columns in eight colours](figures/owners.svg)

```python tags=["slide"]
show(owners(20, 8))
```

```python
predict(
    "42.a", "33 columns, 32 threads: "
    "how many does thread 0 own?", mine=...
)
```

## Run it again

```python tags=["nbval-check-output", "slide"]
# a heading? no, a comment
launch("faults/42_4.cu", check=True)
```

```text
race reported: True
42.b  Is it right?
     your prediction: none yet; type it at mine=
```

**Exercise 42.2**, core. Each thread writes
its own columns.

```python tags=["slide"]
%%exercise 42.2
// your lines
```
"""


def test_a_slide_has_claim_picture_output_and_question():
    owners, race, exercise = slides(PAGE, "../ch42_sums")
    assert owners == (
        "# Which thread owns which column?\n\n"
        "![Twenty columns in eight colours](../ch42_sums/figures/owners.svg)\n\n"
        "> 33 columns, 32 threads: how many does thread 0 own?"
    )
    assert race == "# Run it again\n\n```text\nrace reported: True\n```"
    assert exercise == "# Run it again\n\n> **Exercise 42.2**, core. Each thread writes its own columns."


@pytest.fixture
def page(small, tmp_path, monkeypatch) -> Path:
    """The page of chapter 42, beside its picture."""
    folder = tmp_path / "chapters" / small.name
    (folder / "figures").mkdir(parents=True)
    (folder / "figures" / "owners.svg").write_text("<svg/>", encoding="utf-8")
    (folder / "README.md").write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr("tiny_vllm.grading.commands.slides.chapter", lambda number: replace(small, folder=folder))
    return folder / "README.md"


def test_markdown_links_the_pictures_from_where_it_is_written(page, tmp_path, capsys):
    out = tmp_path / "talks" / "day" / "slides.md"
    out.parent.mkdir(parents=True)
    assert run(Namespace(chapter=42, out=out)) == 0
    text = out.read_text("utf-8")
    first, second, _ = text.removeprefix("---\nmarp: true\n---\n\n").split("\n\n---\n\n")
    assert "](../../chapters/ch42_sums/figures/owners.svg)" in first and second.startswith("# Run it again")
    assert "on the page only" not in text and "launch" not in text
    assert "3 slides" in capsys.readouterr().out


def test_html_holds_its_pictures(page, tmp_path):
    pytest.importorskip("nbconvert")
    assert run(Namespace(chapter=42, out=tmp_path / "slides.html")) == 0
    text = (tmp_path / "slides.html").read_text("utf-8")
    assert 'alt="Twenty columns in eight colours"' in text and "owners.svg" not in text
    assert text.count("<section>") == 6 and "race reported: True" in text  # each slide is a section of one


def test_html_without_nbconvert_says_how_to_get_it(page, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nbconvert", None)
    with pytest.raises(UserError, match=r"tiny-vllm\[notebooks\]"):
        run(Namespace(chapter=42, out=tmp_path / "slides.html"))


def test_another_ending_is_refused(page, tmp_path):
    with pytest.raises(UserError, match=r"ends neither in \.md nor in \.html; `marp slides\.md --pdf`"):
        run(Namespace(chapter=42, out=tmp_path / "slides.pdf"))
    assert not (tmp_path / "slides.pdf").exists()


def test_a_page_without_a_slide(page, tmp_path):
    page.write_text("# 42\n", encoding="utf-8")
    with pytest.raises(UserError, match="no cell tagged slide"):
        run(Namespace(chapter=42, out=tmp_path / "slides.md"))
    assert not (tmp_path / "slides.md").exists()
