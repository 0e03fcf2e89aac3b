"""A student's answer of an exercise: what stands in its region of a file in work/, or in another such folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tiny_vllm.course import markers
from tiny_vllm.course.chapter import Chapter, Exercise
from tiny_vllm.course.files import read_source
from tiny_vllm.errors import UserError


@dataclass(frozen=True)
class Answer:
    """folder: of chapters, as work/ is; chapter.folder.parent holds the worked answers."""

    chapter: Chapter
    exercise: Exercise
    folder: Path

    @property
    def name(self) -> str:
        """What messages call the file."""
        return f"{self.folder.name}/{self.chapter.name}/{self.exercise.file}"

    @property
    def can_be_shown(self) -> bool:
        """Whether this copy of the course has the worked one; a release has none, and a fault has no region."""
        return self.exercise.kind != "fault" and replace(self, folder=self.chapter.folder.parent).region.solved

    @property
    def text(self) -> str:
        """The whole file. UserError that names the way to get one."""
        path = self.folder / self.chapter.name / self.exercise.file
        if not path.exists():
            raise UserError(f"there is no {self.name}; `tiny-vllm course start {self.chapter.number}` writes it")
        return read_source(path)

    @property
    def region(self) -> markers.Region:
        """UserError where its marks are gone."""
        return region(self.text, self.exercise.id, self.exercise.file)


def region(text: str, exercise: str, name: str) -> markers.Region:
    """The region of an exercise. UserError where its marks are gone; name: of the file."""
    for each in markers.regions(text, name):
        if each.id == exercise:
            return each
    raise UserError(
        f"{name} has no marks of exercise {exercise}; put them back, or `tiny-vllm course reset {exercise}` does and "
        "keeps your file in work/.attic/"
    )
