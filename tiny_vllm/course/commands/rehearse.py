"""`tiny-vllm course rehearse --chapters 3`: release, invented submissions, grade, CSV; expected beside got."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny_vllm.course.chapter import Chapter, chapter
from tiny_vllm.course.commands.grade import grade, write_csv
from tiny_vllm.course.commands.release import release
from tiny_vllm.course.fakes import Fake, hand_in
from tiny_vllm.course.grading import Row, graded, wanted
from tiny_vllm.course.submission import submissions


def add_parser(commands: Any) -> None:
    """The options of `rehearse`."""
    parser = commands.add_parser("rehearse", help="release, grade invented submissions, compare with what they deserve")
    parser.add_argument("--chapters", type=int, nargs="+", required=True, metavar="N")
    parser.add_argument("--secret-seed", type=int, default=1, metavar="SEED")
    parser.add_argument("--twist", type=int, metavar="N", help="the published answers are then wrong, too")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the bundle, the submissions and the CSV here")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints a line for each submission and chapter. 1 where one did not get what it deserves."""
    chapters = [chapter(number) for number in dict.fromkeys(arguments.chapters)]
    with contextlib.ExitStack() as stack:
        out = arguments.out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiny-vllm-rehearse-")))
        release(chapters, out / "bundle", arguments.twist)
        made = hand_in(chapters, out / "bundle", out / "moodle.zip")
        handed_in = submissions(out / "moodle.zip", wanted(chapters))
        rows, notes = grade(chapters, handed_in, arguments.secret_seed, arguments.twist)
        write_csv(out / "grades.csv", rows)
    print(f"{'submission':<12} {'chapter':>7}  {'exercises':<14} {'expected':>12} {'got':>5}")
    lines = [compare(each, fake, rows, arguments.twist) for name in made for each, fake in made[name]]
    print("\n".join(text for _, text in lines))
    for note in notes:
        print(f"note: {note}")
    return 0 if all(right for right, _ in lines) else 1


def compare(chapter: Chapter, fake: Fake, rows: Sequence[Row], number: int | None) -> tuple[bool, str]:
    """Whether a fake got what it deserves for a chapter, and its line of the table."""
    asked = list(fake.bodies) or [each.id for each in graded(chapter)]
    if number is not None and not fake.bodies:  # the published answer: right for another task
        asked, fake = [each.id for each in chapter.exercises if number in each.twists], replace(fake, low=0, high=0.4)
    mine = [row for row in rows if row.student.startswith(f"{fake.student} ") and row.exercise in asked]
    share = sum(row.score for row in mine) / (sum(row.max for row in mine) or 1)
    right = fake.low <= round(share, 3) <= fake.high and {row.exercise for row in mine} == set(asked)
    line = f"{fake.student:<12} {chapter.number:>7}  {' '.join(asked):<14} {fake.expected():>12} {share:>5.0%}"
    return right, line + ("" if right else "   <- not as expected")
