"""What the chapters promise as files: who imports whom, what each .cu says it is, that its exercises are marked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(path for path in (ROOT / "chapters").iterdir() if re.match(r"ch\d\d_", path.name))
KERNELS = sorted((ROOT / "chapters").rglob("*.cu"))
WORKED = [path for path in KERNELS if path.parent.parent.name == "chapters"]
# What a chapter of stages 00 to 09 may know of the package, beside earlier chapters
ALLOWED = ("types", "errors", "device", "ops.base", "ops.buffers", "reference", "models")


def imported(file: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it; `from package import name` counts as package.name."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def number(name: str) -> int:
    """The chapter of a module; -1 for a module of no chapter."""
    match = re.match(r"chapters\.ch(\d\d)_", name)
    return int(match[1]) if match else -1


def allowed(name: str) -> bool:
    return any(name == f"tiny_vllm.{part}" or name.startswith(f"tiny_vllm.{part}.") for part in ALLOWED)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.name)
def test_a_chapter_imports_only_earlier_ones_and_the_floors_below(chapter):
    mine = int(chapter.name[2:4])
    files = [*chapter.rglob("*.py"), chapter.parent / "_run.py"]
    for file in files if mine < 15 else []:
        for name in imported(file):
            assert number(name) <= mine, f"{file} imports {name}, a later chapter"
            assert not name.startswith("tiny_vllm") or allowed(name), f"{file} imports {name}"


def test_the_package_imports_no_chapter():
    for file in (ROOT / "tiny_vllm").rglob("*.py"):
        for name in imported(file):
            assert name.partition(".")[0] != "chapters", f"{file} imports {name}"


def test_no_module_but_course_names_the_chapters_package():
    """By path means by a string, which ast's imports do not show."""
    named = re.compile(r"""["']chapters\.ch\d\d""")
    guilty = [file for file in (ROOT / "tiny_vllm").rglob("*.py") if named.search(file.read_text())]
    assert {file.parent.name for file in guilty} <= {"course"}


@pytest.mark.parametrize("file", WORKED, ids=lambda path: path.name)
def test_the_first_line_says_which_file_this_is(file):
    first = file.read_text().splitlines()[0]
    start = (
        f"// {file.relative_to(ROOT).as_posix()}: the worked solution of chapter {file.parent.name[2:4]}. The engine "
    )
    assert first.startswith(start)
    for kernel in re.findall(r"kernels/\S+\.cu", first.removeprefix(start)):
        assert (ROOT / kernel).is_file(), f"{file} names {kernel}, which is not there"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.name)
def test_exercises_are_marked_in_pairs(chapter):
    marks = []
    for file in [*sorted(chapter.glob("*.cu")), chapter / "stage.py"]:
        sign = "#" if file.suffix == ".py" else "//"
        for line in file.read_text().splitlines():
            if "EXERCISE-" in line:
                begin = rf"\s*{sign} EXERCISE-BEGIN (\d+\.\d+) \(about \d+ lines?\): \S.*"
                match = re.fullmatch(rf"{begin}|\s*{sign} EXERCISE-END (\d+\.\d+)", line)
                assert match, f"{file}: {line.strip()}"
                marks.append((match[1] is not None, match[1] or match[2]))
    assert [begins for begins, _ in marks] == [True, False] * (len(marks) // 2)
    ids = [name for _, name in marks]
    assert ids[::2] == ids[1::2]
    assert len(set(ids)) == len(ids) // 2
    assert all(int(name.partition(".")[0]) == int(chapter.name[2:4]) for name in ids)
    assert ids, f"{chapter.name} has no exercise"
