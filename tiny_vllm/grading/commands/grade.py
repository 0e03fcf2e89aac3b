"""`tiny-vllm course grade submissions/ --chapters 3 --secret-seed 20261 --csv g.csv`: rows for every student."""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tiny_vllm.course.chapter import Chapter, chapter
from tiny_vllm.grading import tree, twist
from tiny_vllm.grading.grader import Grader, Row, nvrtc_installed, wanted
from tiny_vllm.grading.submission import Submission, loose, submissions
from tiny_vllm.grading.windows import pairs
from tiny_vllm.sandbox.limits import cut_network


def add_parser(commands: Any) -> None:
    """The options of `grade`."""
    parser = commands.add_parser("grade", help="grade a folder or a zip of submissions")
    parser.add_argument("submissions", type=Path, help="a folder of folders and zips, or Moodle's zip of all")
    parser.add_argument("--chapters", type=int, nargs="+", required=True, metavar="N")
    parser.add_argument("--secret-seed", type=seed, required=True, metavar="SEED", help="draws shapes and inputs")
    parser.add_argument("--twist", type=int, metavar="N", help="the variant that was released")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--similar", action="store_true", help="print the pairs of students whose regions are alike")
    parser.set_defaults(run=run)


def seed(text: str) -> int:
    """What --secret-seed takes."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no seed; give a whole number, 0 or larger")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Prints a line for each student; writes the rows."""
    chosen = [chapter(number) for number in dict.fromkeys(arguments.chapters)]
    handed_in = submissions(arguments.submissions, wanted(chosen))
    rows, notes = grade(chosen, handed_in, arguments.secret_seed, arguments.twist)
    beside = loose(arguments.submissions)
    notes += [f"{name} is nobody's submission; put it into the student's folder" for name in beside]
    totals = totals_of(rows)
    failures = {row.student: f"{row.exercise} {row.first_failure}" for row in reversed(rows) if row.first_failure}
    for student, (score, most) in totals.items():
        print(f"{student:<24} {score:6.1f} of {most:g}   {failures.get(student, '')[:150]}".rstrip())
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if arguments.csv:
        write_csv(arguments.csv, rows)
    if arguments.json:
        content = {"twist": arguments.twist, "notes": notes, "totals": totals, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for exercise, first, second, share in pairs(chosen, handed_in) if arguments.similar else ():
        print(f"alike in {exercise}: {first} and {second}, {share:.0%}")
    return 0


def grade(
    chapters: Sequence[Chapter], handed_in: Sequence[Submission], seed: int, number: int | None = None
) -> tuple[list[Row], list[str]]:
    """The rows of all students, in the order given, and what the report must say beside them."""
    if number is not None:
        twist.twisted(chapters, number)
    spawn, notes = multiprocessing.get_context("spawn"), []
    with tempfile.TemporaryDirectory(prefix="tiny-vllm-tree-") as name:
        tree.copy_tree(Path(name, "tree"), chapters)
        grader, processes = Grader(tuple(chapters), Path(name, "tree"), seed, number), os.cpu_count() or 1
        with ProcessPoolExecutor(min(processes, len(handed_in)), spawn, _keep_compiled_in, (f"{name}/cache",)) as pool:
            rows = [row for each in pool.map(grader.grade, handed_in) for row in each]
    if not nvrtc_installed():
        notes.append("NVRTC is not installed: a GPU's compiler may refuse what passed here")
    with ProcessPoolExecutor(1, spawn) as pool:
        if not pool.submit(cut_network).result():
            notes.append("the system lets no process go without network")
    return rows, notes


def _keep_compiled_in(folder: str) -> None:
    """Nothing that a submission compiles gets into the lecturer's own cache or tree."""
    os.environ |= {"TINY_VLLM_CACHE": folder, "PYTHONDONTWRITEBYTECODE": "1"}


def totals_of(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """(score, max) by student."""
    totals: dict[str, tuple[float, float]] = {}
    for row in rows:
        score, most = totals.get(row.student, (0.0, 0.0))
        totals[row.student] = score + row.score, most + row.max
    return {student: (round(score, 2), round(most, 2)) for student, (score, most) in totals.items()}


def write_csv(file: Path, rows: Sequence[Row]) -> None:
    """The rows, with a line of names."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [each.name for each in fields(Row)])
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in asdict(row).items()} for row in rows)


def _cell(value: Any) -> Any:
    """A name such as =1+1 is text, and no formula of a spreadsheet."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") else value
