"""Checks one exercise: the parent draws the inputs and compares, a child process runs the student's code.

Each group of cases is all or nothing, by weight. A finding of check mode, or an element that nothing wrote, caps the
exercise at half its points, whatever the values are.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tiny_vllm.course import chapters_folder, import_chapters, load_file
from tiny_vllm.course.answer import Answer
from tiny_vllm.course.chapter import Chapter
from tiny_vllm.course.compose import compose
from tiny_vllm.course.failure import Failure, Outcome, mismatch
from tiny_vllm.errors import DeviceError, UserError
from tiny_vllm.sandbox.runs import Child, Limits, RunResult

__all__ = ["Outcome", "check_exercise", "load_cases", "task_of"]

ORDERS = ("forward", "reverse")
SECRET_CASES = 3  # that a seed draws for each group
_ENDS_THE_CHECK = (
    *("CompileError", "NotImplementedError", "SyntaxError", "IndentationError", "ImportError"),
    "timeout",
)


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
    answer = Answer(chapter, chapter.exercise(exercise), implementation)
    if answer.exercise.kind == "fault" and not whole:
        raise UserError(f"exercise {exercise} has no region: answer it with the fault's line, its kind and a repair")
    task = task_of(chapter, exercise)
    judge = _Judge(task, chapter.name, answer.name, _expected(task, chapter, twist), _cases(task, seed))
    solved, python = whole or answer.region.solved, answer.exercise.file.endswith(".py")
    if device != "emulator" or python or not solved:
        orders = orders[:1]
    with contextlib.ExitStack() as stack:
        work = implementation
        if not whole:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory())) / (implementation.resolve().name or "work")
            compose(chapter, implementation, exercise, work)
        settings = (tree or chapters_folder().parent, work, device, True)
        children = {order: stack.enter_context(Child(*settings, order, limits)) for order in orders}
        failures = list(judge.failures(children))
    groups = {case.group: True for case, _ in judge.cases} | {group: False for each in failures for group in each.fails}
    share = _share(groups, clean=not any(each.findings or each.never_written for each in failures))
    return Outcome(
        exercise=exercise,
        name=task.name,
        device=device,
        orders=tuple(orders),
        num_cases=len(judge.cases),
        passed=solved and share == 1,
        score=round(answer.exercise.points * share * solved, 2),
        max=answer.exercise.points,
        groups=groups,
        first_failure=min(failures, key=lambda each: each.mismatch is None and not each.error, default=None),
        findings=tuple({(f.kind, f.file, f.line): f for each in failures for f in each.findings}.values()),
        solved=solved,
        python=python,
    )


def load_cases(chapter: Chapter) -> ModuleType:
    """The chapter's cases.py. UserError when it has none."""
    file = chapter.folder / "cases.py"
    if not file.is_file():
        raise UserError(f"chapter {chapter.number} has no cases.py, so nothing of it can be checked yet")
    import_chapters()
    if file.resolve() == (chapters_folder() / chapter.name / "cases.py").resolve():
        return importlib.import_module(f"chapters.{chapter.name}.cases")
    return load_file(f"_cases_of_{chapter.name}", file)  # of another tree


def task_of(chapter: Chapter, exercise: str) -> Any:
    """The Task (chapters/_cases.py) of an exercise. UserError when nothing checks it."""
    chapter.exercise(exercise)
    for task in load_cases(chapter).TASKS:
        if task.exercise == exercise:
            return task
    raise UserError(f"exercise {exercise} has no cases, so nothing checks it; the chapter's page says how it is judged")


def _expected(task: Any, chapter: Chapter, twist: int | None) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """What is right: the task's own answer or its twist's. UserError for a twist that it has not."""
    twist = chapter.twist if twist is None and chapter.twist in task.twists else twist
    if twist is not None and twist not in task.twists:
        known = ", ".join(map(str, task.twists)) or "none"
        raise UserError(f"exercise {task.exercise} has no twist {twist}; it has {known}")
    expected: Callable[..., Any] = task.expected if twist is None else task.twists[twist]
    return expected


def _cases(task: Any, seed: int | None) -> list[tuple[Any, Mapping[str, Any]]]:
    """(case, inputs): the public cases, always with the same numbers; with a seed, secret ones of each group too."""
    drawn = []
    for number, case in enumerate(task.cases):
        drawn.append((case, task.draw(np.random.default_rng([number, *task.exercise.encode()]), case)))
    for group in dict.fromkeys(case.group for case in task.cases) if seed is not None else ():
        rng = np.random.default_rng([seed, *f"{task.exercise} {group}".encode()])
        for _ in range(SECRET_CASES):
            case = replace(task.secret(rng, group), group=group)
            drawn.append((case, task.draw(rng, case)))
    return drawn


@dataclass(frozen=True)
class _Judge:
    """Compares what children make of the cases with what is expected. file: what messages call the student's."""

    task: Any
    chapter: str
    file: str
    expected: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    cases: Sequence[tuple[Any, Mapping[str, Any]]]

    def failures(self, children: Mapping[str, Child]) -> Iterator[Failure]:
        """In the order they are found; children: by their order of threads. A group that failed is not run further."""
        failed: set[str] = set()
        for order, child in children.items():
            for case, inputs in self.cases:
                if case.group in failed:
                    continue
                result = child.run(self.chapter, self.task.exercise, inputs, self.task.outputs(inputs))
                if failure := self._failure(case, order, inputs, result):
                    failed |= failure.fails
                    yield failure

    def _failure(self, case: Any, order: str, inputs: Mapping[str, Any], result: RunResult) -> Failure | None:
        if result.kind == "DeviceError":  # no compiler, no driver: nobody's answer is at fault
            raise DeviceError(result.error)
        task = self.task
        expected = self.expected(inputs).items() if result.outputs else ()
        compared = (mismatch(name, result.outputs[name], x, task.rtol, task.atol, task.axes) for name, x in expected)
        wrong = next(filter(None, compared), None)
        unwritten = sum(result.never_written.values())
        if not (wrong or result.error or result.findings or unwritten):
            return None
        endless = any(found.kind == "endless loop" for found in result.findings)
        fails = {case.group} if wrong or result.error else set()
        if endless or result.kind in _ENDS_THE_CHECK:
            fails = {each.group for each, _ in self.cases}
        error = f"{result.error} ({self.file})" if result.kind == "OutputError" else result.error
        told = result.findings, error, result.printed
        return Failure(case.group, str(case), order, wrong, unwritten, *told, frozenset(fails))


def _share(groups: Mapping[str, bool], clean: bool) -> float:
    """Of the points, by the groups' weights."""
    weights = importlib.import_module("chapters._cases").WEIGHTS
    share = sum(weights[group] for group in groups if groups[group]) / sum(weights[group] for group in groups)
    return share if clean else min(share, 0.5)
