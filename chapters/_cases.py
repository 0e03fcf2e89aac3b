"""What a chapter's cases.py is made of: one table for tests, `course check`, mutants, the GPU and the grader.

Plain data and functions; how a check judges them is in tiny_vllm/course/checking.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tiny_vllm.device.base import Device

WEIGHTS: Mapping[str, int] = {"basic": 40, "tails": 30, "numbers": 20, "limits": 10}
POISON = -77777  # of an integer output that nothing has written; a float's is NaN

Values = Mapping[str, Any]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One draw of inputs.

    group: one of WEIGHTS. sizes: what messages show, rows=3 hidden=33 threads=32. kind: how the task's draw fills the
    arrays ("normal", "zero row", "embedding"). scale: what it multiplies them by.
    """

    group: str
    sizes: Mapping[str, int]
    kind: str = "normal"
    scale: float = 1.0

    def __str__(self) -> str:
        """The case as a message shows it: "rows=4 hidden=128 threads=64, x0.001"."""
        sizes = " ".join(f"{name}={size}" for name, size in self.sizes.items())
        kind = f", {self.kind}" if self.kind != "normal" else ""
        return sizes + kind + (f", x{self.scale:.3g}" if self.scale != 1 else "")


@dataclass(frozen=True)
class Task:
    """One checked exercise.

    exercise: "3.2". name: what messages call it, "rms_norm_tree". draw(rng, case): the inputs by name, NumPy arrays,
    ints and floats. outputs(inputs): the arrays that run writes, by name; filled with NaN (integers: POISON) where
    nothing is in them yet. run(device, inputs, outputs): launches the implementation on the device's arrays; it alone
    runs in the child process. expected(inputs): the outputs by NumPy, from the formula, never from the code under test.
    secret(rng, group): a case that the grader draws. rtol, atol: as numpy.isclose has them. twists: another expected()
    for each variant of the exercise. axes: what messages call the last two axes of the outputs.
    """

    exercise: str
    name: str
    cases: tuple[Case, ...]
    draw: Callable[[np.random.Generator, Case], dict[str, Any]]
    outputs: Callable[[Values], Arrays]
    run: Callable[[Device, Values, Values], None]
    expected: Callable[[Values], Arrays]
    secret: Callable[[np.random.Generator, str], Case]
    rtol: float = 1e-4
    atol: float = 1e-6
    twists: Mapping[int, Callable[[Values], Arrays]] = field(default_factory=dict)
    axes: tuple[str, str] = ("row", "column")


def poisoned(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An output that nothing has written: NaN, or for integers POISON."""
    return np.full(shape, np.nan if np.dtype(dtype).kind not in "iu" else POISON, dtype)
