"""What a check finds out about one exercise, and that in words: what is wrong, where, and the next step.

exercise 3.2  FAILED  rms_norm [rows=3 hidden=33 threads=32]  (emulator)
  first mismatch y[0, 32]: got nan, expected 0.4123   (3 of 99 wrong: column 32 of every row)
  never written: 3 elements      out of bounds: 0      races: 0
  next: tiny-vllm course hint 3.2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tiny_vllm.sandbox.runs import Found

_FINDINGS_SHOWN, _ERROR_LINES, _PRINTED_LINES = 3, 4, 10
_LINE = 1000  # characters of a line of the student's own that are worth a reader's time
_CAUSES_FIRST = ("barrier", "out of bounds", "uninitialised", "race")  # a race often follows from one of the others


@dataclass(frozen=True)
class Mismatch:
    """The first wrong element of an output, and which ones are wrong besides.

    place: "y[0, 32]: got nan, expected 0.4123". wrong: elements, of total. pattern: "column 32 of every row", or "".
    """

    place: str
    wrong: int
    total: int
    pattern: str

    @property
    def count(self) -> str:
        """How many are wrong, and which."""
        return f"{self.wrong} of {self.total} wrong" + (f": {self.pattern}" if self.pattern else "")


@dataclass(frozen=True)
class Failure:
    """One case that failed. case: its sizes. mismatch: None where the values are right. error: what ended the run.

    fails: the groups that are lost by it; all of them where it ended the check.
    """

    group: str
    case: str
    order: str = "forward"
    mismatch: Mismatch | None = None
    never_written: int = 0
    findings: tuple[Found, ...] = ()
    error: str = ""
    printed: str = ""
    fails: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Outcome:
    """A checked exercise.

    groups: whether each group of cases has right values. findings: of check mode, in all cases. solved: something
    stands in the region. score: points, of at most max. orders: of a block's threads. python: no kernel runs, so
    neither the device nor the order of threads matters.
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
    solved: bool
    python: bool = False

    @property
    def values_only(self) -> bool:
        """Whether check mode, which is the emulator's, did not run."""
        return self.device != "emulator" and not self.python


def report(outcome: Outcome) -> str:
    """The lines that `course check` prints."""
    failure = outcome.first_failure
    if outcome.passed:
        return _passed(outcome)
    if failure is None:
        return f"exercise {outcome.exercise}  not solved yet  {outcome.name}: the values are right without your lines"
    order = ", reverse thread order" if failure.order == "reverse" else ""
    what = f"{outcome.name} [{failure.case}]" + ("" if outcome.python else f"  ({outcome.device}{order})")
    next_step = f"next: tiny-vllm course hint {outcome.exercise}"
    if not outcome.solved:
        lines = [f"exercise {outcome.exercise}  not solved yet  {what}", f"  {_unsolved(failure)}      {next_step}"]
    else:
        lines = [f"exercise {outcome.exercise}  FAILED  {what}", *_story(outcome, failure), f"  {next_step}"]
    return "\n".join(lines)


def mismatch(
    name: str,
    got: np.ndarray,
    expected: np.ndarray,
    rtol: float,
    atol: float,
    axes: tuple[str, str] = ("row", "column"),
) -> Mismatch | None:
    """The comparison of one output, None where all is right: integers exactly; a NaN is never right.

    axes: what the last two axes are called.
    """
    if got.dtype.kind in "iub":
        wrong = got != expected
    else:
        with np.errstate(invalid="ignore"):  # what nothing wrote is a NaN that signals
            got = got.astype(np.float64)
        wrong = ~np.isclose(got, np.asarray(expected, np.float64), rtol, atol)
    if not wrong.any():
        return None
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    where = f"{name}[{', '.join(map(str, index))}]" if index else name
    values = float(got[index]), float(expected[index])
    digits = next((n for n in (4, 6, 9) if len({f"{value:.{n}g}" for value in values}) > 1), 17)
    place = "{}: got {:.{n}g}, expected {:.{n}g}".format(where, *values, n=digits)
    return Mismatch(place, int(wrong.sum()), wrong.size, pattern(wrong, axes))


def pattern(wrong: np.ndarray, axes: tuple[str, str] = ("row", "column")) -> str:
    """Which elements are wrong, if they are whole columns of some rows: "column 32 of every row"; else ""."""
    if wrong.ndim == 0 or wrong.all():
        return ""
    if wrong.ndim == 1:
        return _some("element", np.flatnonzero(wrong))
    table = wrong.reshape(-1, wrong.shape[-1])
    rows, columns = table.any(axis=1), table.any(axis=0)
    if (table != np.outer(rows, columns)).any():
        return ""
    of_rows = f"every {axes[0]}" if rows.all() else _some(axes[0], np.flatnonzero(rows))
    return of_rows if columns.all() else f"{_some(axes[1], np.flatnonzero(columns))} of {of_rows}"


def _some(word: str, numbers: np.ndarray) -> str:
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    if len(numbers) == numbers[-1] - numbers[0] + 1:
        return f"{word}s {numbers[0]} to {numbers[-1]}"
    shown = ", ".join(map(str, numbers[:3]))
    return f"{word}s {shown}" if len(numbers) <= 3 else f"{word}s {shown} and {len(numbers) - 3} more"


def _passed(outcome: Outcome) -> str:
    points = f"  {outcome.score:g} of {outcome.max:g} points" if outcome.max else ""
    how = (
        "values only: check mode is the emulator's" if outcome.values_only else " and ".join(outcome.orders) + " order"
    )
    cases = f"{outcome.num_cases} case{'' if outcome.num_cases == 1 else 's'}"
    how = cases if outcome.python else f"{outcome.device}; {cases}, {how}"
    return f"exercise {outcome.exercise}  passed  {outcome.name}{points}  ({how})"


def _unsolved(failure: Failure) -> str:
    wrong = failure.mismatch
    if wrong is None:
        return _cut(failure.error.partition("\n")[0])
    unwritten = min(failure.never_written, wrong.total)  # there may be several outputs; the first is shown
    count = f"{unwritten} of {wrong.total} never written" if unwritten else wrong.count
    return f"{wrong.place}   ({count})"


def _story(outcome: Outcome, failure: Failure) -> Iterator[str]:
    if failure.error:
        lines = failure.error.splitlines()
        first = next((n for n, line in enumerate(lines) if "error:" in line), 0)  # of a compiler's log
        yield from (f"  {_cut(line)}" for line in lines[first : first + _ERROR_LINES])
    elif failure.mismatch is None:
        yield "  values: right in this case"
    else:
        yield f"  first mismatch {failure.mismatch.place}   ({failure.mismatch.count})"
    if outcome.values_only:
        yield "  values only: races and accesses outside an array show on the emulator"
    elif not failure.error:
        kinds = [each.kind for each in failure.findings]
        elements = f"{failure.never_written} element{'' if failure.never_written == 1 else 's'}"
        bounds, races = kinds.count("out of bounds"), kinds.count("race")
        of_kernels = "" if outcome.python else f"      out of bounds: {bounds}      races: {races}"
        yield f"  never written: {elements}{of_kernels}"
    yield from (f"  {each.text}" for each in sorted(failure.findings, key=_rank)[:_FINDINGS_SHOWN])
    if len(failure.findings) > _FINDINGS_SHOWN:
        yield f"  and {len(failure.findings) - _FINDINGS_SHOWN} more findings"
    yield from (f"  printed: {_cut(line)}" for line in failure.printed.splitlines()[:_PRINTED_LINES])


def _cut(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[:_LINE]} ... ({len(line)} characters)"


def _rank(found: Found) -> int:
    return _CAUSES_FIRST.index(found.kind) if found.kind in _CAUSES_FIRST else 0
