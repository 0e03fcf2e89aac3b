"""PASS or FAIL of a row, and whether it reached its target."""

from __future__ import annotations

from dataclasses import dataclass

PASS, FAIL, NONE = "PASS", "FAIL", "-"


@dataclass(frozen=True)
class Verdict:
    """verdict: PASS, FAIL or "-" where there is nothing to be compared with; target: "met", "missed" or "-"."""

    verdict: str
    target: str

    def __str__(self) -> str:
        return self.verdict if self.target == NONE else f"{self.verdict}, target {self.target}"


def judge(
    ours: float | None, vllm: float | None, best: float | None, target: float | None, higher_is_better: bool
) -> Verdict:
    """A row passes when ours beats vLLM in this call, if it ran, and its best figure anywhere, if one is known.

    All in the row's unit. A tie with vLLM is no win; a target that is reached exactly is met. ours None: it failed.
    """
    sign = 1 if higher_is_better else -1
    rivals = [each for each in (vllm, best) if each is not None]
    if ours is None:
        return Verdict(FAIL, NONE if target is None else "missed")
    won = all(sign * ours > sign * each for each in rivals)
    met = target is not None and sign * ours >= sign * target
    return Verdict(
        (PASS if won else FAIL) if rivals else NONE, NONE if target is None else ("met" if met else "missed")
    )


def ratio(ours: float | None, theirs: float | None, higher_is_better: bool) -> float | None:
    """How many times as fast as theirs ours is."""
    if not ours or not theirs:
        return None
    return ours / theirs if higher_is_better else theirs / ours
