"""Grades: a student's marked regions in our skeletons, judged on inputs that this process draws from a secret seed."""

from __future__ import annotations

import hashlib
import importlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiny_vllm import __version__
from tiny_vllm.course import compose, faults, markers
from tiny_vllm.course.chapter import Chapter, Exercise
from tiny_vllm.course.checking import Outcome, check_exercise
from tiny_vllm.course.failure import report
from tiny_vllm.course.refusals import refused, refused_cuda
from tiny_vllm.course.runs import Limits
from tiny_vllm.course.state import FILE as STATE
from tiny_vllm.course.submission import Submission
from tiny_vllm.device.nvrtc import compile_cuda
from tiny_vllm.device.source import load_source, required_capability, scalar_options
from tiny_vllm.errors import CompileError, DeviceError, UserError

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
        problems = _lay_out(submission, chapter, work)
        stamp = {"version": version(chapter), "seed_hash": hashlib.sha256(str(self.seed).encode()).hexdigest()[:12]}
        for exercise in graded(chapter):
            scores, problem = {"all": (0.0, float(exercise.points))}, problems.get(exercise.id, "")
            if not problem:
                try:
                    outcome = self._judge(submission, chapter, exercise, work)
                    scores, problem = _shares(outcome), _summary(outcome)
                except UserError as error:
                    problem = str(error)
            for group, (score, most) in scores.items():
                yield Row(submission.student, chapter.number, exercise.id, group, score, most, problem, **stamp)

    def _judge(self, submission: Submission, chapter: Chapter, exercise: Exercise, work: Path) -> Outcome:
        if exercise.kind == "fault":
            answer = _answer(submission, exercise.id)
            if why := refused_cuda(answer["repair"]):
                raise UserError(f"refused: {why}")
            return faults.check_answer(chapter, exercise.id, **answer, tree=self.tree, limits=LIMITS)
        if exercise.file.endswith(".cu") and (error := self._nvrtc(chapter, exercise, work)):
            raise UserError(error)
        return check_exercise(
            chapter,
            exercise.id,
            work,
            tree=self.tree,
            seed=self.seed,
            twist=self.twist if self.twist in exercise.twists else None,
            limits=LIMITS,
        )

    def _nvrtc(self, chapter: Chapter, exercise: Exercise, work: Path) -> str:
        """What CUDA's compiler refuses and the emulator's may take; "" where that compiler is not installed."""
        with tempfile.TemporaryDirectory(prefix="tiny-vllm-nvrtc-") as name:
            compose.compose(chapter, work, exercise.id, Path(name))
            text = load_source(f"{chapter.name}/{exercise.file}", (Path(name), self.tree / "kernels"))
            try:
                compile_cuda(text, exercise.file, required_capability(text), scalar_options(np.float32))
            except DeviceError:
                return ""
            except CompileError as error:
                lines = [line for line in str(error).splitlines() if "error" in line] or str(error).splitlines()
                return f"NVRTC refuses it: {lines[0]}"
        return ""


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


def _lay_out(submission: Submission, chapter: Chapter, work: Path) -> dict[str, str]:
    """Write our skeletons with the student's regions into work; why an exercise cannot be judged, by its id."""
    problems: dict[str, str] = {}
    for file in chapter.files:
        text = (chapter.folder / file).read_text(encoding="utf-8")
        skeleton, bodies, problem = markers.skeleton(text, file.endswith(".py")), {}, submission.problem
        try:
            written = submission.files.get(f"{chapter.name}/{file}")
            bodies = {} if written is None else {each.id: each.body for each in markers.regions(written, file)}
            problem = problem or (f"there is no {chapter.name}/{file} in the submission" if written is None else "")
        except UserError as error:
            problem = str(error)
        for id in markers.bodies(text):
            if why := refused(bodies.get(id, ""), file.endswith(".py"), skeleton):
                problems[id] = f"refused: {why}"
            elif id not in bodies:
                problems[id] = problem or f"the marks of exercise {id} are gone from {file}"
        taken = {id: body for id, body in bodies.items() if id not in problems}
        (work / chapter.name / file).parent.mkdir(parents=True, exist_ok=True)
        (work / chapter.name / file).write_text(markers.fill(skeleton, taken), encoding="utf-8")
    return problems


def _summary(outcome: Outcome) -> str:
    """The failure message in one line, of at most 400 characters; "" where the exercise passed."""
    lines = [] if outcome.passed else [" ".join(line.split()) for line in report(outcome).splitlines()]
    text = " ".join(line for line in lines if not line.startswith(("next: ", "printed: ")))
    return "".join(mark if mark.isprintable() else " " for mark in text)[:400]


def _shares(outcome: Outcome) -> dict[str, tuple[float, float]]:
    """(score, max) of each group, by the groups' weights; a capped exercise's score is shared by those that passed."""
    importance = {**importlib.import_module("chapters._cases").WEIGHTS, **faults.WEIGHTS}
    weights = {group: importance[group] for group in outcome.groups}
    total = sum(weights.values())
    reached = sum(weight for group, weight in weights.items() if outcome.groups[group])
    return {
        group: (
            round(outcome.score * weight / reached, 4) if outcome.groups[group] else 0.0,
            round(outcome.max * weight / total, 4),
        )
        for group, weight in weights.items()
    }


def _answer(submission: Submission, exercise: str) -> dict[str, Any]:
    """What work/.course.json says to a find-the-fault exercise. UserError where it says nothing that can be judged."""
    try:
        answer = json.loads(submission.files.get(STATE, "{}"))["answers"][exercise]
        given = {"line": int(answer["line"]), "kind": str(answer["kind"]), "repair": str(answer["repair"])}
        given["repair_after"] = bool(answer.get("repair_after"))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{STATE} of the submission holds no answer to exercise {exercise}") from None
    return given
