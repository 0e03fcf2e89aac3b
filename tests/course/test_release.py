"""A release: what is in it, what is not, and that nothing of a worked region gets out by any door."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_vllm.course import load_course_ops, markers
from tiny_vllm.course.chapter import Chapter, chapter
from tiny_vllm.course.skeletons import RELEASED, WORKED
from tiny_vllm.device import get_device
from tiny_vllm.device.source import load_source
from tiny_vllm.errors import UserError
from tiny_vllm.grading.commands.release import release
from tiny_vllm.grading.windows import tokens, windows

PAGE = """# 42 · Sums

## My own columns

```python
%%exercise 42.2
// your lines
```
"""
TREE = "if (threadIdx.x < stride) partial[threadIdx.x] += partial[threadIdx.x + stride];"  # of the worked 42.3
SHORT = ".x < stride) partial[threadIdx.x] +="  # one window of it


def checkout(tree: Path, root: Path, leave: tuple[str, ...] = ()) -> Chapter:
    """Chapter 42 in a checkout of one's own, with a page, a notebook, a mutant and a lecturer's file."""
    shutil.copytree(tree, root, ignore=shutil.ignore_patterns("__pycache__", *leave))
    folder = root / "chapters" / "ch42_sums"
    cells = [{"cell_type": "code", "id": "a", "metadata": {}, "source": ["%%exercise 42.2\n", "// your lines"]}]
    fault = (folder / "faults" / "42_4.cu").read_text("utf-8").replace("stride", "half")  # else it shows 42.3
    files = {
        folder / "README.md": PAGE,
        folder / "faults" / "42_4.cu": fault,
        folder / "mutants" / "half.cu": TREE,
        root / "docs" / "lecturer" / "answers.md": TREE,
        root / "notebooks" / "42_sums.ipynb": json.dumps({"cells": cells, "nbformat": 4}),
    }
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return chapter(42, root / "chapters")


@pytest.fixture
def own(tree, tmp_path) -> Chapter:
    """Without the package, which is most of a checkout."""
    return checkout(tree, tmp_path / "checkout", ("tiny_vllm",))


def texts(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix in (".cu", ".cuh", ".py", ".md", "")]
    return {file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8") for file in files}


def test_skeletons_and_no_answers(own, tmp_path):
    release([own], tmp_path / "hw")
    bundle = texts(tmp_path / "hw")
    for name in own.files:
        worked = (own.folder / name).read_text("utf-8")
        first, gaps = (each.format("ch42_sums", name) for each in (WORKED, RELEASED))
        empty = markers.skeleton(worked, name.endswith(".py"))
        assert bundle[f"chapters/ch42_sums/{name}"] == empty.replace(first, gaps, 1)
        assert "the worked solution" not in bundle[f"chapters/ch42_sums/{name}"]
    body = markers.bodies((own.folder / "sums.cu").read_text("utf-8"))["42.3"]
    assert all(not windows(text) & windows(body) for text in bundle.values())
    assert len(windows(body)) > 20
    for there in ("cases.py", "README.md", "stand_ins/42_3.cu", "faults/42_4.cu"):
        assert f"chapters/ch42_sums/{there}" in bundle
    assert (tmp_path / "hw" / "notebooks" / "42_sums.ipynb").is_file() and "kernels/dtype.cuh" in bundle
    assert not [name for name in bundle if "mutants" in name or "lecturer" in name]
    assert bundle["README.md"].split("```")[1].strip().splitlines() == [
        "python3 -m venv .venv && source .venv/bin/activate",
        "pip install -e '.[notebooks]'",
        "tiny-vllm course start 42",
        "tiny-vllm course check 42.1",
    ]
    assert "About 30 minutes." in bundle["README.md"] and "`blockDim.x` is how many" in bundle["README.md"]


@pytest.mark.parametrize(
    "place, text",
    [
        ("README.md", f"```\n{SHORT}\n```"),
        ("README.md", "".join(f"> {part}\n" for part in SHORT.split())),
        ("README.md", SHORT.replace("<", "&lt;")),
        ("faults/42_4.cu", f"int a;  // {SHORT}\n"),
        ("faults/42_4.cu", SHORT.replace(" +=", " /* of the other half */ +=")),
        ("faults/42_4.cu", "/* " + SHORT.replace(" +=", "\n+=") + " */\n"),
        ("cases.py", f'"""{SHORT}"""\n'),
        ("cases.py", f"TEXT = '{SHORT.replace(' ', chr(92) + 'n')}'\n"),
        ("figures.py", "".join(f"# {part}\n" for part in SHORT.split())),
        ("figures.py", "\n".join(f"{part}  # step {n}" for n, part in enumerate(SHORT.split()))),
        ("figures/tree.svg", f"<text>{SHORT.replace('<', '&lt;')}</text>"),
        ("chapter.toml", f"# {SHORT}\n"),
    ],
)
def test_an_answer_in_the_bundle_fails_it_by_file_and_window(own, tmp_path, place, text):
    file = own.folder / place
    file.parent.mkdir(exist_ok=True)
    file.write_text((file.read_text("utf-8") if file.exists() else "") + text, encoding="utf-8")
    with pytest.raises(UserError, match=rf"nothing is released(?s:.*){place} shows exercise 42.3: ") as caught:
        release([own], tmp_path / "hw")
    assert " ".join(tokens(SHORT)) in str(caught.value)
    assert not (tmp_path / "hw").exists()


@pytest.mark.parametrize("cell", [{"source": [SHORT[:12], SHORT[12:]]}, {"outputs": [{"data": {"text/plain": SHORT}}]}])
def test_an_answer_in_a_notebook_fails_it(own, tmp_path, cell):
    notebook = own.folder.parents[1] / "notebooks" / "42_sums.ipynb"
    notebook.write_text(json.dumps({"cells": [{"source": []} | cell]}), encoding="utf-8")
    with pytest.raises(UserError, match=r"notebooks/42_sums\.ipynb shows exercise 42\.3"):
        release([own], tmp_path / "hw")


def test_a_level_three_hint_may_show_a_window_and_a_level_two_may_not(own, tmp_path):
    toml = own.folder / "chapter.toml"
    text = toml.read_text("utf-8")
    toml.write_text(text.replace("stride >>= ____", TREE), encoding="utf-8")
    release([chapter(42, own.folder.parent)], tmp_path / "hw")
    toml.write_text(text.replace('"Halve."', f'"{TREE}"'), encoding="utf-8")
    with pytest.raises(UserError, match=r"chapter\.toml shows exercise 42\.3"):
        release([chapter(42, own.folder.parent)], tmp_path / "more")


def test_what_the_given_lines_show_is_no_answer(own, tmp_path):
    given = "for (int c = threadIdx.x; c < columns; c += blockDim.x)"  # in 42.2 and in the given lines of 42.3
    (own.folder / "README.md").write_text(f"{PAGE}\n{given}\n", encoding="utf-8")
    release([own], tmp_path / "hw")


def test_kernels_that_show_an_answer_are_left_out(own, tmp_path):
    kernels, source = own.folder.parents[1] / "kernels", own.folder / "sums.cu"
    source.write_text(source.read_text("utf-8").replace("runs nothing of it", "runs kernels/embed.cu"), "utf-8")
    (kernels / "tree.cuh").write_text(f"// kernels/tree.cuh: a tree\n{TREE}\n", encoding="utf-8")
    (kernels / "uses.cuh").write_text('// kernels/uses.cuh: uses it\n#include "tree.cuh"\n', encoding="utf-8")
    (kernels / "more.cu").write_text('// kernels/more.cu: uses that\n#include "uses.cuh"\n', encoding="utf-8")
    gone = ["embed.cu", "more.cu", "tree.cuh", "uses.cuh"]
    assert release([own], tmp_path / "hw") == gone
    there = {file.name for file in (tmp_path / "hw" / "kernels").iterdir()}
    assert not there & set(gone) and "rope.cu" in there
    assert "`more.cu`" in (tmp_path / "hw" / "README.md").read_text("utf-8")
    with pytest.raises(
        UserError, match=r"there is no embed\.cu in kernels/; this release leaves it out.*--ops reference"
    ):
        load_source("embed.cu", [tmp_path / "hw" / "kernels"])
    with pytest.raises(UserError, match="check the name"):
        load_source("other.cu", [tmp_path / "hw" / "kernels"])


def test_a_twist_is_said_in_the_mark_on_the_page_and_in_the_notebook(own, tmp_path):
    release([own], tmp_path / "hw", 1)
    folder = tmp_path / "hw" / "chapters" / "ch42_sums"
    [region, other] = markers.regions((folder / "sums.cu").read_text("utf-8"))
    assert region.task.endswith("columns that this thread owns. This time: Add two, not one.")
    assert "This time" not in other.task
    assert "\n\n**This time:** Add two, not one.\n\n```python\n%%exercise 42.2\n" in (folder / "README.md").read_text(
        "utf-8"
    )
    cells = json.loads((tmp_path / "hw" / "notebooks" / "42_sums.ipynb").read_text("utf-8"))["cells"]
    assert cells[0]["source"] == ["**This time:** Add two, not one."] and len(cells) == 2
    assert (folder / "chapter.toml").read_text("utf-8").startswith("twist = 1\n")
    with pytest.raises(UserError, match="no exercise has a twist 7; there are: 1"):
        release([own], tmp_path / "other", 7)


def test_a_folder_with_something_in_it_is_left_alone(own, tmp_path):
    (tmp_path / "hw").mkdir()
    (tmp_path / "hw" / "mine").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="is there already"):
        release([own], tmp_path / "hw")
    assert [file.name for file in (tmp_path / "hw").iterdir()] == ["mine"]


def test_a_student_can_work_from_it_alone(tree, tmp_path, course):
    release([checkout(tree, tmp_path / "checkout")], tmp_path / "hw", 1)
    work = tmp_path / "hw" / "work"
    started = course("start", "42", tree=tmp_path / "hw", work=work)
    assert started.returncode == 0, started.stderr
    file = work / "ch42_sums" / "sums.cu"
    assert file.read_text("utf-8").startswith("// work/ch42_sums/sums.cu: your answers of chapter 42. The engine ")
    there = tmp_path / "hw" / "chapters" / "ch42_sums" / "sums.cu"
    gaps = there.read_text("utf-8")
    there.write_text(markers.fill(gaps, {"42.2": "    y[0] = 1;\n"}), encoding="utf-8")
    misplaced = course("check", "42.2", tree=tmp_path / "hw", work=work)
    assert "your lines stand in chapters/ch42_sums/sums.cu; put them into work/\n" in misplaced.stdout
    there.write_text(gaps, encoding="utf-8")
    for added, code, said in ((1, 1, "FAILED"), (2, 0, "passed")):  # the published answer, the twisted one
        answer = f"    for (int k = threadIdx.x; k < columns; k += blockDim.x) y[k] = x[k] * factor + {added};\n"
        file.write_text(markers.fill(file.read_text("utf-8"), {"42.2": answer}), encoding="utf-8")
        checked = course("check", "42.2", tree=tmp_path / "hw", work=work)
        assert checked.returncode == code and f"exercise 42.2  {said}" in checked.stdout, (
            checked.stdout + checked.stderr
        )


def test_the_engine_has_its_kernels_in_every_release(tmp_path):
    """They write a thread's number another way round than a region does, so that none is left out as an answer."""
    release([chapter(0)], tmp_path / "hw")
    there = {file.name for file in (tmp_path / "hw" / "kernels").iterdir()}
    assert {"step_inputs.cu", "fetch.cu", "argmax.cu", "sampling_draw.cu", "token_order.cuh"} <= there
    model = ["--model", "tests/data/tiny/tiny", "--device", "emulator", "--max-tokens", "1"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "hw")}

    def generate(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tiny_vllm", "generate", *model, *arguments, "hi"]
        return subprocess.run(command, cwd=tmp_path / "hw", env=env, capture_output=True, text=True, check=False)

    done = generate("--ops", "reference")
    assert done.returncode == 0, done.stderr
    (tmp_path / "hw" / "work").mkdir()
    refused = generate("--mine", "work").stderr
    assert "a release with some of the chapters only; run with --ops reference, without --mine" in refused


def test_the_courses_operations_are_not_all_in_a_release(tree, monkeypatch):
    monkeypatch.setattr("tiny_vllm.course.checkout_root", lambda: tree)
    monkeypatch.delitem(sys.modules, "chapters", raising=False)
    with pytest.raises(UserError, match="release with some of the chapters only; run with --ops reference"):
        load_course_ops(get_device("emulator"), None, None)
    monkeypatch.undo()
