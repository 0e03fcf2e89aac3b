"""`tiny-vllm course release 3 --out hw1/`: a bundle that a student can work from alone, with no answer in it."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny_vllm.course.chapter import Chapter, chapter
from tiny_vllm.errors import UserError
from tiny_vllm.grading import tree, twist
from tiny_vllm.grading.windows import WINDOW, leaks, worked_windows

_DOCS = ("docs/LICENSE", "docs/setup.md", "docs/performance.md", "docs/glossary.md")
_DATA = ("tests/data/tiny", "tests/data/smollm2_activations.npz")
_TESTS = ("tests/conftest.py", "tests/chapters/conftest.py", "tests/chapters/test_cases.py")
SHARED = ("LICENSE", "NOTICE", "CITATION.cff", *_DOCS, *_DATA, *_TESTS)
LEFT_OUT = """
Some files of `kernels/` are not here, since they show answers: {names}. The engine runs with `--ops reference`.
"""


def add_parser(commands: Any) -> None:
    """The options of `release`."""
    parser = commands.add_parser("release", help="write a bundle for students, without answers")
    parser.add_argument("chapters", metavar="CHAPTER", type=int, nargs="+", help="the chapters to release: 3 6 8")
    parser.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="a new folder")
    parser.add_argument("--twist", metavar="N", type=int, help="the variant of the exercises that have one")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints what was written and which kernels were left out."""
    chosen = [chapter(number) for number in dict.fromkeys(arguments.chapters)]
    left_out = release(chosen, arguments.out, arguments.twist)
    files = [file for file in arguments.out.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files) / 1e6
    print(f"{arguments.out}: {len(files)} files, {size:.1f} MB, no window of {WINDOW} tokens of a worked region")
    if left_out:
        print(f"left out of kernels/, since they show answers: {', '.join(left_out)}")
    return 0


def release(chapters: Sequence[Chapter], out: Path, number: int | None = None) -> list[str]:
    """Write the bundle; returns the kernels left out. UserError, and no bundle, where a file shows an answer."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already; name a new folder")
    with tempfile.TemporaryDirectory(prefix="tiny-vllm-release-") as name:
        bundle = Path(name) / "bundle"
        notebooks = [f"notebooks/{each.name[2:]}.ipynb" for each in chapters]
        left_out = tree.copy_tree(bundle, chapters, (*SHARED, *notebooks))
        for each, exercise in twist.twisted(chapters, number) if number is not None else ():
            twist.state(bundle, each, exercise, number or 0)
        (bundle / "README.md").write_text(_readme(chapters, left_out), encoding="utf-8")
        _refuse_leaks(bundle, chapters)
        shutil.copytree(bundle, out, dirs_exist_ok=True)
    return left_out


def _readme(chapters: Sequence[Chapter], left_out: Sequence[str]) -> str:
    pages = [f"chapters/{each.name}/README.md" for each in chapters]
    template = (Path(__file__).parents[1] / "release_readme.md").read_text(encoding="utf-8")
    return template.format(
        titles=", ".join(f"chapter {each.number}" for each in chapters),
        minutes=sum(each.minutes for each in chapters),
        first=chapters[0].number,
        exercise=chapters[0].exercises[0].id,
        pages=", ".join(f"[{page}]({page})" for page in pages),
        left_out=LEFT_OUT.format(names=", ".join(f"`{name}`" for name in left_out)) if left_out else "",
    )


def _refuse_leaks(bundle: Path, chapters: Sequence[Chapter]) -> None:
    hints = [exercise.hints[2] for each in chapters for exercise in each.exercises]
    found = [
        f"{file.relative_to(bundle)} shows exercise {id}: {' '.join(window)}"
        for file, id, window in leaks(bundle, worked_windows(chapters), hints)
    ]
    if found:
        raise UserError("nothing is released; take these answers out:\n  " + "\n  ".join(found))
