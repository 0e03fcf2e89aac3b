"""Checks one exercise: the parent draws the inputs and compares, a child process runs the student's code.

Each group of cases is all or nothing, by weight. A finding of check mode, or an element that nothing wrote, caps the
exercise at half its points, whatever the values are.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tiny_vllm.course import chapters_folder, import_chapters
from tiny_vllm.course.chapter import Chapter
from tiny_vllm.course.compose import compose, read_answer, region
from tiny_vllm.course.failure import mismatch
from tiny_vllm.course.outcome import Failure, Mismatch, Outcome
from tiny_vllm.course.runs import Child, Found, Limits, RunResult
from tiny_vllm.errors import DeviceError, UserError

__all__ = ["Outcome", "check_exercise", "load_cases", "task_of"]

ORDERS = ("forward", "reverse")
SECRET_CASES = 3  # that a seed draws for each group
_ENDS_THE_CHECK = ("CompileError", "NotImplementedError", "SyntaxError", "ImportError", "timeout")


def check_exercise(
    chapter: Chapter,
    exercise: str,
    implementation: Path,
    *,
    device: str = "emulator",
    tree: Path | None = None,
    seed: int | None = None,
    twist: int | None = None,
    orders: Sequence[str] = ORDERS,
    whole: bool = False,
    limits: Limits | None = None,
) -> Outcome:
    """Run an exercise's cases on an implementation, a folder of chapter folders, as work/ is.

    tree: the checkout that the child runs in. seed: draws secret cases beside the public ones. twist: which variant of
    the task is asked for; left out, the chapter's own, if the exercise has that one. whole: the implementation's files
    run as they are, not the exercise's region alone.
    """
    if chapter.exercise(exercise).kind == "fault" and not whole:
        raise UserError(f"exercise {exercise} has no region: answer it with the fault's line, its kind and a repair")
    task = task_of(chapter, exercise)
    twist = chapter.twist if twist is None and chapter.twist in task.twists else twist
    judge = _Judge(chapter, exercise, _cases(task, seed), twist)
    solved = whole or _is_solved(chapter, exercise, implementation)
    both = device == "emulator" and solved and not judge.python
    orders = tuple(orders) if both else tuple(orders[:1])
    with contextlib.ExitStack() as stack:
        work = implementation
        if not whole:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory())) / (implementation.resolve().name or "work")
            compose(chapter, implementation, exercise, work)
        settings = (tree or chapters_folder().parent, work, device, True)
        children = [stack.enter_context(Child(*settings, order, limits)) for order in orders]
        for order, child in zip(orders, children):
            judge.run(child, order)
    return judge.outcome(device, orders, solved)


def load_cases(chapter: Chapter) -> ModuleType:
    """The chapter's cases.py. UserError when it has none."""
    file = chapter.folder / "cases.py"
    if not file.is_file():
        raise UserError(f"chapter {chapter.number} has no cases.py, so nothing of it can be checked yet")
    import_chapters()
    if file.resolve() == (chapters_folder() / chapter.name / "cases.py").resolve():
        return importlib.import_module(f"chapters.{chapter.name}.cases")
    name = f"_cases_of_{chapter.name}"  # of another tree
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def task_of(chapter: Chapter, exercise: str) -> Any:
    """The Task (chapters/_cases.py) of an exercise. UserError when nothing checks it."""
    chapter.exercise(exercise)
    for task in load_cases(chapter).TASKS:
        if task.exercise == exercise:
            return task
    raise UserError(f"exercise {exercise} has no cases, so nothing checks it; the chapter's page says how it is judged")


@dataclass(frozen=True)
class _Drawn:
    case: Any
    inputs: Mapping[str, Any]


def _cases(task: Any, seed: int | None) -> list[_Drawn]:
    """The public cases, always with the same numbers; with a seed, secret ones of each group too."""
    drawn = []
    for number, case in enumerate(task.cases):
        rng = np.random.default_rng([number, *task.exercise.encode()])
        drawn.append(_Drawn(case, task.draw(rng, case)))
    for group in dict.fromkeys(case.group for case in task.cases) if seed is not None else ():
        rng = np.random.default_rng([seed, *f"{task.exercise} {group}".encode()])
        for _ in range(SECRET_CASES):
            case = replace(task.secret(rng, group), group=group)
            drawn.append(_Drawn(case, task.draw(rng, case)))
    return drawn


def _is_solved(chapter: Chapter, exercise: str, implementation: Path) -> bool:
    file = chapter.exercise(exercise).file
    return region(read_answer(chapter, implementation, file), exercise, file).solved


@dataclass
class _Judge:
    """Gathers what the runs show. failed: groups with a wrong value; failures: in the order they were found."""

    chapter: Chapter
    exercise: str
    cases: list[_Drawn]
    twist: int | None
    failed: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    findings: dict[tuple[str, str, int], Found] = field(default_factory=dict)
    stopped: bool = False

    def __post_init__(self) -> None:
        self.task = task_of(self.chapter, self.exercise)
        if self.twist is not None and self.twist not in self.task.twists:
            known = ", ".join(map(str, self.task.twists)) or "none"
            raise UserError(f"exercise {self.exercise} has no twist {self.twist}; it has {known}")
        self.expected: Callable[..., Any] = self.task.expected if self.twist is None else self.task.twists[self.twist]

    @property
    def python(self) -> bool:
        """Whether the exercise is one of NumPy: no kernel runs."""
        return self.chapter.exercise(self.exercise).file.endswith(".py")

    def run(self, child: Child, order: str) -> None:
        """All cases in one order of threads; a group that has failed is not run further."""
        for drawn in self.cases:
            if self.stopped or drawn.case.group in self.failed:
                continue
            outputs = self.task.outputs(drawn.inputs)
            result = child.run(self.chapter.name, self.exercise, drawn.inputs, outputs)
            if result.kind == "DeviceError":  # no compiler, no driver: nobody's answer is at fault
                raise DeviceError(result.error)
            wrong = self._first_wrong(drawn, result)
            self._note(drawn.case, order, wrong, result)
            if wrong or result.error:
                self.failed.add(drawn.case.group)
            endless = any(found.kind == "endless loop" for found in result.findings)
            self.stopped = endless or result.kind in _ENDS_THE_CHECK
        if self.stopped:
            self.failed |= {drawn.case.group for drawn in self.cases}

    def _first_wrong(self, drawn: _Drawn, result: RunResult) -> Mismatch | None:
        if not result.outputs:
            return None
        wanted = self.expected(drawn.inputs).items()
        compared: Iterator[Mismatch | None] = (
            mismatch(name, result.outputs[name], values, self.task.rtol, self.task.atol, self.task.axes)
            for name, values in wanted
        )
        return next(filter(None, compared), None)

    def _note(self, case: Any, order: str, wrong: Mismatch | None, result: RunResult) -> None:
        unwritten = sum(result.never_written.values())
        self.findings |= {(each.kind, each.file, each.line): each for each in result.findings}
        if wrong or result.error or result.findings or unwritten:
            failure = Failure(
                case.group, str(case), order, wrong, unwritten, result.findings, result.error, result.printed
            )
            self.failures.append(failure)

    def outcome(self, device: str, orders: tuple[str, ...], solved: bool) -> Outcome:
        from_chapter = self.chapter.exercise(self.exercise)
        groups = {group: group not in self.failed for group in dict.fromkeys(d.case.group for d in self.cases)}
        weights = _weights(groups)
        share = sum(weights[group] for group, right in groups.items() if right) / sum(weights.values())
        clean = not self.findings and not any(each.never_written for each in self.failures)
        share = 0.0 if not solved else share if clean else min(share, 0.5)
        return Outcome(
            exercise=self.exercise,
            name=self.task.name,
            device=device,
            orders=orders,
            num_cases=len(self.cases),
            passed=solved and all(groups.values()) and clean,
            score=round(from_chapter.points * share, 2),
            max=from_chapter.points,
            groups=groups,
            first_failure=min(self.failures, key=lambda each: each.mismatch is None and not each.error, default=None),
            findings=tuple(self.findings.values()),
            values_only=device != "emulator" and not self.python,
            solved=solved,
            python=self.python,
        )


def _weights(groups: Mapping[str, bool]) -> Mapping[str, int]:
    weights = importlib.import_module("chapters._cases").WEIGHTS
    return {group: weights[group] for group in groups}
