"""What a check finds out about one exercise: plain data, which checking.py fills and failure.py puts into words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiny_vllm.course.runs import Found


@dataclass(frozen=True)
class Mismatch:
    """The first wrong element of an output, and which ones are wrong besides; pattern: "column 32 of every row"."""

    output: str
    index: tuple[int, ...]
    got: float
    expected: float
    wrong: int
    total: int
    pattern: str


@dataclass(frozen=True)
class Failure:
    """One case that failed. case: its sizes. mismatch: None where the values are right. error: what ended the run."""

    group: str
    case: str
    order: str
    mismatch: Mismatch | None
    never_written: int
    findings: tuple[Found, ...]
    error: str
    printed: str


@dataclass(frozen=True)
class Outcome:
    """A checked exercise.

    groups: whether each group of cases has right values. findings: of check mode, in all cases. values_only: check mode
    did not run. solved: something stands in the region. score: points, of at most max. orders: of a block's threads.
    python: no kernel runs, so neither the device nor the order of threads matters.
    """

    exercise: str
    name: str
    device: str
    orders: tuple[str, ...]
    num_cases: int
    passed: bool
    score: float
    max: float
    groups: Mapping[str, bool]
    first_failure: Failure | None
    findings: tuple[Found, ...]
    values_only: bool
    solved: bool
    python: bool = False
