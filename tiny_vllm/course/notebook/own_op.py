"""`mine`: an exercise as an operation, with the reader's lines where they pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiny_vllm.course import chapters_folder
from tiny_vllm.course.checking import load_cases, task_of
from tiny_vllm.course.notebook.lesson import WORKED, YOURS, Lesson
from tiny_vllm.errors import KernelError, UserError
from tiny_vllm.sandbox.runs import Child

NUMPY = "NumPy's"


@dataclass(frozen=True)
class OwnOp:
    """An operation on NumPy arrays, such as rms_norm(x, weight, eps) -> y.

    owner: "yours", "the worked one" or "NumPy's". The first two run in a child process, on the lesson's device.
    """

    exercise: str
    name: str
    owner: str
    _run: Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]]
    _inputs: Callable[..., dict[str, Any]]

    def __call__(self, *args: Any, **options: Any) -> Any:
        """The op's one output; a tuple where it has several."""
        outputs = tuple(self._run(self._inputs(*args, **options)).values())
        return outputs[0] if len(outputs) == 1 else outputs


def own_op(lesson: Lesson, exercise: str) -> OwnOp:
    """The op of an exercise: the reader's if it passes, else the worked one; NumPy's where the tree has no answers."""
    ops = load_cases(lesson.chapter).OPS
    if exercise not in ops:
        raise UserError(f"exercise {exercise} is no operation of the model; these are: {', '.join(ops) or 'none'}")
    (name, inputs), task = ops[exercise], task_of(lesson.chapter, exercise)
    owner = lesson.filled(lesson.chapter.exercise(exercise).file).owners[exercise]
    if owner not in (YOURS, WORKED):
        return OwnOp(exercise, name, NUMPY, task.expected, inputs)
    child = Child(chapters_folder().parent, lesson.write_filled(), lesson.device.name, check=False)

    def run(values: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        result = child.run(lesson.chapter.name, exercise, values, task.outputs(values))
        if result.error:
            raise KernelError(f"exercise {exercise}, {owner}: {result.error}")
        return result.outputs

    return OwnOp(exercise, name, owner, run, inputs)
