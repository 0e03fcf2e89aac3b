"""Chapter 03's table of cases: the worked answers pass, a twist's public answer does not, and no case is idle."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from chapters.ch03_rms_norm import cases, formula
from tiny_vllm.device.emulator import Emulator
from tiny_vllm.device.source import load_source
from tiny_vllm.errors import KernelCheckError, KernelError
from tools.mutants_table import filled, table

CHAPTER = Path(cases.__file__).parent
TASKS = {task.exercise: task for task in cases.TASKS}
SOLVED = [task for exercise, task in TASKS.items() if exercise != "3.4"]
MUTANTS = sorted(file for file in (CHAPTER / "mutants").iterdir() if file.suffix in (".cu", ".py"))
ALL = [pytest.param(task, case, id=f"{task.exercise}-{case}") for task in SOLVED for case in task.cases]


def outcome(device, task, case, seed=0, expected=None):
    """Whether every value is right; what check mode finds raises."""
    inputs = task.draw(np.random.default_rng(seed), case)
    on_device = {k: device.asarray(v) if isinstance(v, np.ndarray) else v for k, v in inputs.items()}
    outputs = {k: device.asarray(v) for k, v in task.outputs(inputs).items()}
    task.run(device, on_device, outputs)
    wanted = (expected or task.expected)(inputs)
    assert wanted.keys() == outputs.keys()
    got = {name: device.to_host(array) for name, array in outputs.items()}
    return all(np.isclose(got[name], wanted[name], rtol=task.rtol, atol=task.atol).all() for name in wanted)


@pytest.mark.parametrize("task, case", ALL)
def test_the_worked_answer_is_right(device, task, case):
    assert outcome(device, task, case)


@pytest.mark.parametrize("group", ["basic", "tails", "numbers", "limits"])
@pytest.mark.parametrize("task", SOLVED, ids=lambda task: task.exercise)
def test_it_is_right_on_secret_cases(device, task, group):
    rng = np.random.default_rng(7)
    assert all(outcome(device, task, task.secret(rng, group), seed) for seed in range(2))


@pytest.mark.parametrize("exercise, twist", [(name, n) for name in ("3.2", "3.3") for n in (1, 2, 3)])
def test_under_a_twist_the_public_answer_fails_every_group(device, exercise, twist):
    task = TASKS[exercise]
    failed = {c.group for c in task.cases if not outcome(device, task, c, expected=task.twists[twist])}
    assert failed == {case.group for case in task.cases}


def test_the_references_are_the_formulas():
    x = np.array([[1.0, -1, 5, 3]], np.float32)
    inputs = {"x": x, "weight": np.array([1, 2, 3, 4], np.float32), "eps": 0.0, "threads": 2}
    np.testing.assert_allclose(cases.normed(inputs)["y"], [[1 / 3, -2 / 3, 5, 4]], rtol=1e-6)
    np.testing.assert_allclose(cases.normed_gain_plus_one(inputs)["y"], [[2 / 3, -1, 20 / 3, 5]], rtol=1e-6)
    np.testing.assert_allclose(cases.normed_around_mean(inputs)["y"] * 5**0.5, [[-1, -6, 9, 4]], rtol=1e-6)
    assert cases.squares(inputs)["sums"].tolist() == [[26, 10]]
    assert cases.squares_of_pairs(inputs)["sums"].tolist() == [[2, 34]]
    assert cases.squares_of_runs(inputs)["sums"].tolist() == [[2, 34]]
    assert cases.squares_from_the_last(inputs)["sums"].tolist() == [[10, 26]]
    two_heads = {**inputs, "x": np.r_[np.full(64, 2), np.full(64, 3)][None], "weight": np.ones(128)}
    np.testing.assert_allclose(cases.normed_by_head(two_heads)["y"], np.ones((1, 128)), rtol=1e-6)


# ---- mutants


def exercise_of(file: Path) -> str:
    match = re.search(r"\| exercise: (\S+)", file.read_text())
    assert match, file
    return match[1]


def killed(file: Path, folder: Path, monkeypatch) -> list[bool]:
    """For each case of its exercise: whether the mutant's values are wrong, whatever check mode finds."""
    task, device = TASKS[exercise_of(file)], Emulator()
    (folder / "ch03_rms_norm").mkdir(exist_ok=True)
    if file.suffix == ".cu":
        (folder / "ch03_rms_norm" / "rms_norm.cu").write_text(file.read_text())
    else:
        spec = importlib.util.spec_from_file_location("mutant", file)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(cases, "formula", module)
    results = []
    for case in task.cases:
        try:
            results.append(not outcome(device, task, case))
        except KernelError:
            results.append(True)
    monkeypatch.setattr(cases, "formula", formula)
    return results


@pytest.mark.deep
def test_every_case_kills_a_mutant_that_no_case_before_it_kills(tmp_path, monkeypatch):
    monkeypatch.setenv("TINY_VLLM_WORK", str(tmp_path))
    monkeypatch.setenv("TINY_VLLM_CHECK", "1")
    first: dict[tuple[str, int], list[str]] = {}
    for file in MUTANTS:
        found = killed(file, tmp_path, monkeypatch)
        if any(found):
            first.setdefault((exercise_of(file), found.index(True)), []).append(file.stem)
    idle = [f"{t.exercise}: {c}" for t in SOLVED for i, c in enumerate(t.cases) if (t.exercise, i) not in first]
    assert idle == []


# ---- what the page runs


def run(name: str, kernel: str, block: int, *args, check: bool = True):
    try:
        Emulator().RawKernel(load_source(f"ch03_rms_norm/{name}"), kernel, check=check)((1,), (block,), args)
        return []
    except KernelCheckError as error:
        return error.findings


def test_the_trap_is_right_and_a_race():
    numbers, result = np.arange(1, 129, dtype=np.float32), np.full(1, np.nan, np.float32)
    assert run("faults/shared_sum.cu", "shared_sum", 128, numbers, result, check=False) == []
    assert result[0] == 8256
    (found,) = run("faults/shared_sum.cu", "shared_sum", 128, numbers, result)
    assert (found.kind, found.argument) == ("race", "total")


def test_the_fault_is_found_and_its_repair_is_right(tmp_path, monkeypatch):
    tomllib = pytest.importorskip("tomllib")
    answer = tomllib.loads((CHAPTER / "lecturer" / "answers.toml").read_text())["3.4"]
    a, b = np.random.default_rng(0).normal(size=128).astype(np.float32), np.full(128, np.nan, np.float32)
    found = run("faults/3_4.cu", "smooth", 128, a, b)
    assert (answer["line"], answer["kind"]) in [(each.line, each.kind) for each in found]
    lines = (CHAPTER / "faults" / "3_4.cu").read_text().splitlines()
    lines[answer["line"] - 1] = answer["repair"]
    (tmp_path / "ch03_rms_norm" / "faults").mkdir(parents=True)
    (tmp_path / "ch03_rms_norm" / "faults" / "3_4.cu").write_text("\n".join(lines))
    monkeypatch.setenv("TINY_VLLM_WORK", str(tmp_path))
    assert run("faults/3_4.cu", "smooth", 128, a, b) == []
    np.testing.assert_allclose(b, cases.smoothed({"a": a})["b"], rtol=1e-5, atol=1e-6)


def test_the_demos():
    owner, held = np.full(20, -1, np.int32), np.full((4, 32), np.nan, np.float32)
    assert run("demos/owners.cu", "owners", 8, owner, 20) == []
    assert owner.tolist() == [column % 8 for column in range(20)]
    assert run("demos/shuffle.cu", "shuffle", 32, np.array([1, 1, 25, 9, 4, 0, 16, 16], np.float32), held, 8) == []
    assert held[1, :8].tolist() == [5, 1, 41, 25, 5, 1, 41, 25]
    assert (held[3, :8] == 72).all()


def test_the_lecturers_table_is_made_of_the_mutants_headers():
    page = (CHAPTER.parents[1] / "docs" / "lecturer" / "03_rms_norm.md").read_text()
    assert filled(page, CHAPTER) == page, "run python tools/mutants_table.py 3 --write"
    assert len(table(CHAPTER).splitlines()) == 2 + len(MUTANTS)
