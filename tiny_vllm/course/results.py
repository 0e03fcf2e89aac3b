"""What checks found out, kept in work/.course.json for `course status`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiny_vllm.course.answer import Answer
from tiny_vllm.course.failure import Outcome
from tiny_vllm.course.skeletons import fingerprint
from tiny_vllm.course.state import State, changing


def body_of(answer: Answer, state: State) -> str:
    """A hash of what stands in the region, or of a fault's answer."""
    if answer.exercise.kind == "fault":
        return _fault_body(state.answers.get(answer.exercise.id, {}))
    return fingerprint(answer.region.body)


def record(work: Path, outcome: Outcome, body: str) -> None:
    """Note what became of a region. body: the hash of what was checked; the note is good until the answer changes."""
    with changing(work) as state:
        state.results[outcome.exercise] = _result(outcome, body)


def record_fault(work: Path, outcome: Outcome, answer: Mapping[str, Any], new: bool) -> str:
    """Note what became of a find-the-fault answer, and the answer, unless a better one is there: words that say so.

    new: it was given just now; else it was in the file, and is left alone where another took its place meanwhile.
    """
    id = outcome.exercise
    with changing(work) as state:
        there, result = state.answers.get(id, {}), state.results.get(id)
        if not new and there != answer:
            return ""
        if result and there != answer and result["body"] == _fault_body(there) and result["score"] > outcome.score:
            return f"your answer of before (line {there['line']}, {result['score']:g} points) is better, and is kept"
        state.answers[id] = dict(answer)
        state.results[id] = _result(outcome, _fault_body(answer))
    return ""


def _fault_body(answer: Mapping[str, Any]) -> str:
    return fingerprint(repr(sorted(answer.items())))


def _result(outcome: Outcome, body: str) -> dict[str, Any]:
    scores = {"score": outcome.score, "max": outcome.max, "passed": outcome.passed, "solved": outcome.solved}
    return {**scores, "body": body}
