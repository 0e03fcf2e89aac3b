"""Grades: a student's marked regions in our skeletons, judged on inputs that this process draws from a secret seed."""

from __future__ import annotations

import hashlib
import importlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiny_vllm import __version__
from tiny_vllm.course import compose, faults, markers
from tiny_vllm.course.chapter import Chapter, Exercise
from tiny_vllm.course.checking import Outcome, check_exercise
from tiny_vllm.course.failure import report
from tiny_vllm.course.files import read_source, write_atomic
from tiny_vllm.course.state import FILE as STATE
from tiny_vllm.device.nvrtc import compile_cuda
from tiny_vllm.device.source import load_source, only_architecture, required_capability, scalar_options
from tiny_vllm.errors import CompileError, DeviceError, UserError
from tiny_vllm.grading.refusals import refused, refused_cuda
from tiny_vllm.grading.submission import Submission
from tiny_vllm.sandbox.runs import Limits

LIMITS = Limits(seconds=120, launch_seconds=20, memory=4 << 30, processes=32, network=False)


@dataclass(frozen=True)
class Row:
    """What one group of cases gave; group "all" where nothing could run."""

    student: str
    chapter: int
    exercise: str
    group: str
    score: float
    max: float
    first_failure: str
    version: str
    seed_hash: str


@dataclass(frozen=True)
class Grader:
    """tree: a checkout without the chapters' answers, in which the submissions run. twist: that was released."""

    chapters: tuple[Chapter, ...]
    tree: Path
    seed: int
    twist: int | None = None

    def grade(self, submission: Submission) -> list[Row]:
        """The rows of one student, in the order of the exercises."""
        with tempfile.TemporaryDirectory(prefix="tiny-vllm-grade-") as name:
            work = Path(name) / "work"
            return [row for each in self.chapters for row in self._rows(submission, each, work)]

    def _rows(self, submission: Submission, chapter: Chapter, work: Path) -> Iterator[Row]:
        stamp = {"version": version(chapter), "seed_hash": hashlib.sha256(str(self.seed).encode()).hexdigest()[:12]}
        for exercise in graded(chapter):
            try:
                outcome = self._judge(submission, chapter, exercise, work)
                shares, problem = _shares(outcome), _summary(outcome)
            except UserError as error:
                shares, problem = [("all", 0.0, float(exercise.points))], str(error)
            for group, score, most in shares:
                yield Row(submission.student, chapter.number, exercise.id, group, score, most, problem, **stamp)

    def _judge(self, submission: Submission, chapter: Chapter, exercise: Exercise, work: Path) -> Outcome:
        """UserError where nothing can run, and why."""
        if exercise.kind == "fault":
            answer = _answer(submission, exercise.id)
            if why := refused_cuda(answer["repair"]):
                raise UserError(f"refused: {why}")
            return faults.check_answer(chapter, exercise.id, **answer, tree=self.tree, limits=LIMITS)
        _lay_out(submission, chapter, exercise, work)
        if exercise.file.endswith(".cu"):
            self._ask_nvrtc(chapter, exercise, work)
        twist = self.twist if self.twist in exercise.twists else None
        return check_exercise(chapter, exercise.id, work, tree=self.tree, seed=self.seed, twist=twist, limits=LIMITS)

    def _ask_nvrtc(self, chapter: Chapter, exercise: Exercise, work: Path) -> None:
        """UserError for what CUDA's compiler, where it is installed, refuses and the emulator's may take."""
        with tempfile.TemporaryDirectory(prefix="tiny-vllm-nvrtc-") as name, suppress(DeviceError):
            compose.compose(chapter, work, exercise.id, Path(name))
            text = load_source(f"{chapter.name}/{exercise.file}", (Path(name), self.tree / "kernels"))
            try:
                architecture = only_architecture(text) or required_capability(text)
                compile_cuda(text, exercise.file, architecture, scalar_options(np.float32))
            except CompileError as error:
                lines = str(error).splitlines()
                raise UserError(
                    f"NVRTC refuses it: {next((each for each in lines if 'error' in each), lines[0])}"
                ) from None


def graded(chapter: Chapter) -> list[Exercise]:
    """The exercises that give points."""
    return [exercise for exercise in chapter.exercises if exercise.points]


def version(chapter: Chapter) -> str:
    """The package's version and a hash of what judges this chapter."""
    judge = [chapter.folder / name for name in ("cases.py", "chapter.toml", *chapter.files)]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in judge)).hexdigest()[:8]
    return f"{__version__}+{digest}"


def nvrtc_installed() -> bool:
    """Whether CUDA's compiler can be asked."""
    try:
        compile_cuda("")
    except DeviceError:
        return False
    return True


def wanted(chapters: Sequence[Chapter]) -> list[str]:
    """The files that are taken from a submission."""
    return [f"{chapter.name}/{file}" for chapter in chapters for file in chapter.files] + [STATE]


def _lay_out(submission: Submission, chapter: Chapter, exercise: Exercise, work: Path) -> None:
    """Write our skeleton with the exercise's region into work. UserError where it is not there, or is refused."""
    name, python = f"{chapter.name}/{exercise.file}", exercise.file.endswith(".py")
    skeleton = markers.skeleton(read_source(chapter.folder / exercise.file), python)
    body = submission.bodies(name).get(exercise.id)
    if body is None:
        raise UserError(f"the marks of exercise {exercise.id} are gone from {exercise.file}")
    if why := refused(body, python, skeleton):
        raise UserError(f"refused: {why}")
    write_atomic(work / name, markers.fill(skeleton, {exercise.id: body}))


def _summary(outcome: Outcome) -> str:
    """The failure message in one line, of at most 400 characters; "" where the exercise passed."""
    lines = [] if outcome.passed else [" ".join(line.split()) for line in report(outcome).splitlines()]
    text = " ".join(line for line in lines if not line.startswith(("next: ", "printed: ")))
    return "".join(mark if mark.isprintable() else " " for mark in text)[:400]


def _shares(outcome: Outcome) -> list[tuple[str, float, float]]:
    """(group, score, max), by the groups' weights; a capped exercise's score is shared by those that passed."""
    weights = {**importlib.import_module("chapters._cases").WEIGHTS, **faults.WEIGHTS}
    score = outcome.score / (sum(weights[group] for group, right in outcome.groups.items() if right) or 1)
    most = outcome.max / sum(weights[group] for group in outcome.groups)
    return [
        (group, round(score * weights[group] * right, 4), round(most * weights[group], 4))
        for group, right in outcome.groups.items()
    ]


def _answer(submission: Submission, exercise: str) -> dict[str, Any]:
    """What work/.course.json says to a find-the-fault exercise. UserError where it says nothing that can be judged."""
    if STATE not in submission.files:
        why = f" ({submission.problem})" if submission.problem else f", which holds the answer to exercise {exercise}"
        raise UserError(f"there is no {STATE} in the submission{why}")
    try:
        state = json.loads(submission.files[STATE])
    except (ValueError, RecursionError) as error:
        raise UserError(f"{STATE} of the submission is damaged: {error}") from None
    try:
        answer = state["answers"][exercise]
        given = {"line": int(answer["line"]), "kind": str(answer["kind"]), "repair": str(answer["repair"])}
        return given | {"repair_after": bool(answer.get("repair_after"))}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{STATE} of the submission holds no answer to exercise {exercise}") from None
