"""Every chapter as a student gets it: it compiles, it fails in every group, and its message names the exercise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_vllm.course import markers
from tiny_vllm.course.chapter import chapters
from tiny_vllm.course.checking import check_exercise, load_cases
from tiny_vllm.course.commands.start import start
from tiny_vllm.course.failure import report
from tiny_vllm.course.skeletons import WORKED, YOURS
from tiny_vllm.device import nvrtc
from tiny_vllm.device.emulator import RawModule
from tiny_vllm.device.source import load_source, only_architecture, required_capability, scalar_options
from tiny_vllm.errors import DeviceError

ROOT = Path(__file__).resolve().parents[2]
MARKED = [path for path in sorted((ROOT / "chapters").glob("ch*/*.cu")) if "EXERCISE-BEGIN" in path.read_text("utf-8")]
PYTHON = [path for path in sorted((ROOT / "chapters").glob("ch*/*.py")) if "EXERCISE-BEGIN" in path.read_text("utf-8")]
CHAPTERS = chapters()
EXERCISES = [
    (chapter, task.exercise)
    for chapter in CHAPTERS
    if (chapter.folder / "cases.py").is_file()
    for task in load_cases(chapter).TASKS
    if chapter.exercise(task.exercise).kind != "fault"
]


def skeleton_source(path: Path, folder: Path) -> str:
    """The skeleton of a chapter's .cu file, headers inlined."""
    target = folder / path.parent.name / path.name
    target.parent.mkdir()
    target.write_text(markers.skeleton(path.read_text("utf-8"), python=False), "utf-8")
    return load_source(f"{path.parent.name}/{path.name}", (folder, ROOT / "chapters", ROOT / "kernels"))


@pytest.mark.parametrize("path", MARKED, ids=lambda path: path.stem)
def test_it_compiles_on_the_host(path, tmp_path):
    source = skeleton_source(path, tmp_path)
    assert RawModule(source, (*scalar_options("float32"), "-DHEAD_DIM=64")).names


@pytest.mark.parametrize("path", MARKED, ids=lambda path: path.stem)
def test_it_compiles_with_nvrtc(path, tmp_path):
    source = skeleton_source(path, tmp_path)
    options = (*scalar_options("float32"), "-DHEAD_DIM=64")
    try:
        architecture = only_architecture(source) or required_capability(source)
        assert nvrtc.compile_cuda(source, path.name, architecture, options).kernels
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.parent.name)
def test_it_is_python(path):
    compile(markers.skeleton(path.read_text("utf-8"), python=True), str(path), "exec")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_started_and_filled_again_it_is_the_worked_file(chapter, tmp_path):
    """Byte for byte, but for the words of the first line that say whose file it is."""
    written = start(chapter, tmp_path)
    for file in chapter.files:
        assert tmp_path / chapter.name / file in written
        worked = (chapter.folder / file).read_bytes().decode()
        mine = (tmp_path / chapter.name / file).read_bytes().decode()
        filled = markers.fill(mine, markers.bodies(worked))
        yours, first = YOURS.format(chapter.name, file), WORKED.format(chapter.name, file)
        assert mine.startswith(yours) == file.endswith(".cu")
        assert filled.replace(yours, first, 1) == worked


@pytest.mark.parametrize("chapter, exercise", EXERCISES, ids=[exercise for _, exercise in EXERCISES])
def test_it_fails_in_every_group(chapter, exercise, tmp_path):
    start(chapter, tmp_path / "work")
    outcome = check_exercise(chapter, exercise, tmp_path / "work", orders=("forward",))
    assert outcome.score == 0 and not any(outcome.groups.values()) and not outcome.passed
    text = report(outcome)
    assert text.startswith(f"exercise {exercise}  not solved yet  {outcome.name} [")
    assert "got " in text and text.endswith(f"next: tiny-vllm course hint {exercise}")
