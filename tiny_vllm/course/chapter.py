"""A chapter as its chapter.toml describes it: exercises with points and hints, questions, predictions."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny_vllm.course import chapters_folder
from tiny_vllm.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KINDS = ("warm-up", "core", "fault", "stretch")


@dataclass(frozen=True)
class Exercise:
    """kind: one of KINDS. points: 0 for a stretch. file: of the chapter's folder, holds the region or the fault."""

    id: str
    title: str
    kind: str
    stars: int
    points: int
    minutes: int
    file: str
    hints: tuple[str, str, str]
    twists: Mapping[int, str]  # number -> the sentence that changes the task


@dataclass(frozen=True)
class Chapter:
    """name: "ch03_rms_norm". needs: numbers of the chapters before it. minutes: for all of it.

    questions: the written ones, {id, kind, text}; kind: "computes" or "argues". predictions: {id, question}, for
    numbers that the reader types before the cell that shows them. twist: which variant of its exercises a lecturer's
    release asks for; None for the exercises as they are.
    """

    number: int
    name: str
    folder: Path
    title: str
    needs: tuple[int, ...]
    minutes: int
    exercises: tuple[Exercise, ...]
    questions: tuple[Mapping[str, str], ...]
    predictions: tuple[Mapping[str, str], ...]
    twist: int | None = None

    def exercise(self, id: str) -> Exercise:
        """UserError: which exercises there are."""
        for each in self.exercises:
            if each.id == id:
                return each
        raise UserError(f"there is no exercise {id}; chapter {self.number} has {self.known}")

    @property
    def known(self) -> str:
        """The exercises' numbers, in words."""
        return ", ".join(each.id for each in self.exercises)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that hold a region to fill in, each once."""
        return tuple(dict.fromkeys(each.file for each in self.exercises if each.kind != "fault"))


def chapters(root: Path | None = None) -> list[Chapter]:
    """Those that have a chapter.toml, in order. root: the chapters' folder, the checkout's if left out."""
    folder = root or chapters_folder()
    return [_read(file) for file in sorted(folder.glob("ch[0-9][0-9]_*/chapter.toml"))]


def chapter(number: int, root: Path | None = None) -> Chapter:
    """UserError: which chapters there are."""
    found = {each.number: each for each in chapters(root)}
    if number in found:
        return found[number]
    known = ", ".join(map(str, found)) or "none"
    raise UserError(f"there is no chapter {number} with exercises; there are: {known}")


def find(target: str, root: Path | None = None) -> tuple[Chapter, Exercise | None]:
    """What a user means by "3" or by "3.2"."""
    match = re.fullmatch(r"(\d{1,2})(?:\.(\d{1,2}))?", target)
    if match is None:
        raise UserError(f"{target!r} is neither a chapter nor an exercise; give a number such as 3 or 3.2")
    found = chapter(int(match[1]), root)
    return found, None if match[2] is None else found.exercise(f"{int(match[1])}.{int(match[2])}")


def _read(file: Path) -> Chapter:
    where = f"{file.parent.name}/{file.name}"
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        return Chapter(
            number=int(data["number"]),
            name=file.parent.name,
            folder=file.parent,
            title=data["title"],
            needs=tuple(data.get("needs", ())),
            minutes=data["minutes"],
            exercises=tuple(_exercise(each) for each in data.get("exercise", ())),
            questions=tuple(data.get("question", ())),
            predictions=tuple(data.get("prediction", ())),
            twist=data.get("twist"),
        )
    except KeyError as error:
        raise UserError(f"{where} lacks {error}; add it") from None
    except (OSError, TypeError, ValueError) as error:
        raise UserError(f"{where} cannot be read: {error}; correct it") from None


def _exercise(data: dict[str, Any]) -> Exercise:
    if data["kind"] not in KINDS:
        raise ValueError(f"exercise {data['id']} is of kind {data['kind']!r}, not one of {', '.join(KINDS)}")
    first, second, third = data["hints"]
    twists = {int(number): each["sentence"] for number, each in data.pop("twist", {}).items()}
    return Exercise(**{**data, "hints": (first, second, third)}, twists=twists)
