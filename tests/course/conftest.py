"""A checkout of its own for the tests of the course: the real package and kernels, and the small chapter 42."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tiny_vllm.course import chapter as course_chapter
from tiny_vllm.course import markers
from tiny_vllm.course.chapter import Chapter
from tiny_vllm.course.skeletons import skeleton_of

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "tests" / "data" / "course" / "ch42_sums"


def make_tree(folder: Path) -> Path:
    """A checkout whose only chapter with exercises is 42."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tiny_vllm", folder / "tiny_vllm", ignore=ignore)
    shutil.copytree(ROOT / "kernels", folder / "kernels")
    shutil.copytree(SMALL, folder / "chapters" / "ch42_sums", ignore=ignore)
    for name in ("pyproject.toml", "chapters/__init__.py", "chapters/_cases.py"):
        shutil.copy(ROOT / name, folder / name)
    for file in (folder / "chapters").rglob("*.cu"):
        file.write_text(file.read_text(encoding="utf-8").replace("// tests/data/course/", "// chapters/"), "utf-8")
    return folder


@pytest.fixture(scope="session")
def tree(tmp_path_factory) -> Path:
    """Not to be changed."""
    return make_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="session")
def small(tree) -> Chapter:
    return course_chapter.chapter(42, tree / "chapters")


@pytest.fixture
def work(tmp_path, small) -> Path:
    """A work folder with chapter 42's skeletons."""
    for file in small.files:
        path = tmp_path / "work" / small.name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(skeleton_of(small, file), "utf-8")
    return tmp_path / "work"


@pytest.fixture
def write(work, small) -> Callable[[str, str], None]:
    """Put a body into an exercise's region in work/; "worked": the worked one."""

    def put(exercise: str, body: str) -> None:
        file = small.exercise(exercise).file
        if body == "worked":
            body = markers.bodies((small.folder / file).read_text("utf-8"))[exercise]
        path = work / small.name / file
        path.write_text(markers.fill(path.read_text("utf-8"), {exercise: body}), "utf-8")

    return put


@dataclass
class Done:
    """What a command printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def course(tree, work, monkeypatch, capsys) -> Iterator[Callable[..., Done]]:
    """`tiny-vllm course ...` in the small checkout, on this test's work folder; in this process, which is quicker."""
    from tiny_vllm import cli, course

    def run(*arguments: str, tree: Path = tree, work: Path = work) -> Done:
        monkeypatch.setenv("TINY_VLLM_WORK", str(work))
        monkeypatch.setattr(course, "checkout_root", lambda: tree)
        for name in [name for name in sys.modules if name.partition(".")[0] == "chapters"]:
            monkeypatch.delitem(sys.modules, name)
        capsys.readouterr()
        code = cli.main(["course", *arguments])
        return Done(code, *capsys.readouterr())

    yield run
    for name in [name for name in sys.modules if name.partition(".")[0] == "chapters"]:
        del sys.modules[name]


@pytest.fixture
def in_a_process(tree) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same as a program of its own."""

    def run(*arguments: str, work: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tiny_vllm", *arguments]
        env = {**os.environ, "PYTHONPATH": str(tree), "TINY_VLLM_WORK": str(work), "PYTHONIOENCODING": "utf-8"}
        return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, encoding="utf-8", check=False)

    return run
