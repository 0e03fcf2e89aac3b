"""Slides out of a page's tagged cells."""

from __future__ import annotations

from argparse import Namespace
from contextlib import nullcontext
from dataclasses import replace

import pytest

from tiny_vllm.course.commands.slides import markdown, run, slides
from tiny_vllm.errors import UserError

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
    owners, race, exercise = slides(PAGE)
    assert owners.claim == "Which thread owns which column?"
    assert (owners.picture, owners.alt) == ("figures/owners.svg", "Twenty columns in eight colours")
    assert owners.question == "33 columns, 32 threads: how many does thread 0 own?" and owners.output == ""
    assert (race.claim, race.output) == ("Run it again", "race reported: True")
    assert race.question == race.picture == ""
    assert exercise.question == "**Exercise 42.2**, core. Each thread writes its own columns."
    assert exercise.output == exercise.picture == ""


def test_markdown_links_the_pictures_from_where_it_is_written(tmp_path):
    text = markdown(slides(PAGE), tmp_path / "chapters" / "ch42_sums", tmp_path / "talks" / "day" / "slides.md")
    first, second, _ = text.removeprefix("---\nmarp: true\n---\n\n").split("\n\n---\n\n")
    assert first == (
        "# Which thread owns which column?\n\n"
        "![Twenty columns in eight colours](../../chapters/ch42_sums/figures/owners.svg)\n\n"
        "> 33 columns, 32 threads: how many does thread 0 own?"
    )
    assert second == "# Run it again\n\n```text\nrace reported: True\n```"
    assert "on the page only" not in text and "launch" not in text


@pytest.mark.parametrize("page, said", [(PAGE, "3 slides"), ("# 42\n", "no cell tagged slide")])
def test_the_command(small, tmp_path, monkeypatch, capsys, page, said):
    folder = tmp_path / small.name
    folder.mkdir()
    (folder / "README.md").write_text(page, encoding="utf-8")
    monkeypatch.setattr("tiny_vllm.course.commands.slides.chapter", lambda number: replace(small, folder=folder))
    with nullcontext() if page == PAGE else pytest.raises(UserError, match=said):
        assert run(Namespace(chapter=42, out=tmp_path / "deck.md")) == 0
        assert said in capsys.readouterr().out
    assert (tmp_path / "deck.md").exists() == (page == PAGE)
