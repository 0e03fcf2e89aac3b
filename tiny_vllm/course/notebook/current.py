"""Which chapter the running notebook is about: the one thing that its cells share."""

from __future__ import annotations

from dataclasses import dataclass

from tiny_vllm.course.notebook.lesson import Lesson
from tiny_vllm.errors import UserError


@dataclass
class Current:
    """Set by chapter(3), the first cell of every notebook."""

    opened: Lesson | None = None

    @property
    def lesson(self) -> Lesson:
        """UserError before the first chapter(...)."""
        if self.opened is None:
            raise UserError("no chapter is open; run the first cell, such as chapter(3)")
        return self.opened

    def of(self, exercise: str) -> Lesson:
        """The lesson, if the exercise or prediction is one of its chapter; UserError otherwise."""
        number = self.lesson.chapter.number
        if exercise.partition(".")[0] != str(number):
            raise UserError(f"{exercise} is not of chapter {number}, which this notebook is about; give one of its own")
        return self.lesson


CURRENT = Current()
