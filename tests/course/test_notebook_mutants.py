"""A mutant as the chapter's own file makes its notebook fail: the exercise's cell, and the real model where it can."""

from __future__ import annotations

import re
import shutil
import textwrap

import numpy as np
import pytest

from tiny_vllm.course import markers
from tiny_vllm.course.chapter import chapter
from tiny_vllm.course.commands.start import start
from tiny_vllm.course.notebook.cells import write_cell
from tiny_vllm.course.notebook.lesson import WORKED, Lesson
from tiny_vllm.course.notebook.own_op import own_op
from tiny_vllm.course.notebook.real_model import TOLERANCE, load_model, replaced

FOLDER = chapter(3).folder
PROMPT = "The capital of France is"
MUTANTS = sorted((FOLDER / "mutants").glob("*.cu"))
NOT_OF_THE_TREE = re.compile(r"caught by: clean|exercise: 3\.5")
# SmolLM2's rows have 576 float32 columns and 128 threads take them, which these mutants do rightly; of the
# last one who writes is wrong, not what.
BLIND = {"do_while", "eps_to_first_order", "half_sum", "halve_the_columns", "serial_sum", "sixteen_passes"}
BLIND |= {"thread_0_writes"}


def header(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("//").strip() for line in lines[:3])


IN_THE_MODEL = [path for path in MUTANTS if not NOT_OF_THE_TREE.search(header(path)) and path.stem not in BLIND]
EXERCISES = {path: re.findall(r"exercise: (\d\.\d)", header(path))[0] for path in MUTANTS}


def with_file(implementation, tmp_path, device):
    """The lesson of a chapter 03 whose file is this one, and a work folder that holds the same lines."""
    folder = tmp_path / "chapters" / FOLDER.name
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__", "mutants"))
    shutil.copyfile(implementation, folder / "rms_norm.cu")
    (tmp_path / "tests").symlink_to(FOLDER.parents[1] / "tests")  # its cases read an array there
    return Lesson(chapter(3, tmp_path / "chapters"), tmp_path / "work", device)


def apart(implementation, tmp_path, device, smollm2_folder):
    """How far the real model's logits move when chapter 03's file is this one."""
    op = own_op(with_file(implementation, tmp_path, device), "3.3")
    assert op.owner == WORKED
    model = load_model(str(smollm2_folder))
    ids = model.tokenizer.encode(PROMPT)
    with np.errstate(all="ignore"):
        return np.abs(model.logits(ids, replaced(model.ops, rms_norm=op)) - model.logits(ids)).max()


def test_the_worked_file_moves_nothing(tmp_path, device, smollm2_folder):
    assert apart(FOLDER / "rms_norm.cu", tmp_path, device, smollm2_folder) <= TOLERANCE


@pytest.mark.deep
@pytest.mark.parametrize("mutant", IN_THE_MODEL, ids=lambda path: path.stem)
def test_the_real_model_notices_a_mutant(mutant, tmp_path, device, smollm2_folder):
    assert not apart(mutant, tmp_path, device, smollm2_folder) <= TOLERANCE  # NaN is noticed too


@pytest.mark.deep
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda path: path.stem)
def test_the_solved_notebooks_cell_notices_a_mutant(mutant, tmp_path, device):
    lesson, exercise = with_file(mutant, tmp_path, device), EXERCISES[mutant]
    bodies = markers.bodies(mutant.read_text(encoding="utf-8"))
    start(lesson.chapter, lesson.work)
    assert write_cell(lesson, exercise, textwrap.dedent(bodies[exercise])) is None
    outcome = lesson.check(exercise)
    assert outcome.solved and not outcome.passed
