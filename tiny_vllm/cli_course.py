"""`tiny-vllm course COMMAND`: the exercises, for students and for lecturers. Each command is a file of its own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any

STUDENTS = ("list_", "start", "check", "hint", "diff", "status", "reset", "update")
LECTURERS = ("release", "grade", "rehearse", "slides")


def add_parser(commands: Any) -> None:
    """The commands of `course`. Their modules, and NumPy with them, load when one of them is wanted."""
    parser = commands.add_parser("course", help="the exercises: start a chapter, check an answer, take a hint")
    parse = parser.parse_known_args

    def parse_known_args(args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None) -> Any:
        chosen = parser.add_subparsers(title="commands", dest="course_command", required=True, metavar="COMMAND")
        for name in STUDENTS:
            _add_command(chosen, name.rstrip("_"), import_module(f"tiny_vllm.course.commands.{name}"))
        for name in LECTURERS:
            import_module(f"tiny_vllm.grading.commands.{name}").add_parser(chosen)
        return parse(args, namespace)

    parser.parse_known_args = parse_known_args


def _add_command(chosen: Any, name: str, command: Any) -> None:
    """A module's run(arguments) and, where it has them, TARGET (what it is about) and add_options(parser).

    The first line of its docstring is the help: "`tiny-vllm course hint 3.2`: the next hint of an exercise."
    """
    parser = chosen.add_parser(name, help=(command.__doc__ or "").partition("\n")[0].partition(": ")[2].rstrip("."))
    if hasattr(command, "TARGET"):
        parser.add_argument("target", metavar="NUMBER", help=command.TARGET)
    if hasattr(command, "add_options"):
        command.add_options(parser)
    parser.set_defaults(run=command.run)
