"""What a check finds: one sentence, and the one command that mends it."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Status(Enum):
    """NOTE: tiny-vllm runs all the same; PROBLEM: something that is needed does not work."""

    OK = "OK"
    NOTE = "note"
    PROBLEM = "PROBLEM"


@dataclass(frozen=True)
class Finding:
    """sentence: what was found; command: what to run or to set, None where nothing needs it; check: the row's name."""

    status: Status
    sentence: str
    command: str | None = None
    check: str = ""


def ok(sentence: str) -> Finding:
    return Finding(Status.OK, sentence)


def note(sentence: str, command: str | None = None) -> Finding:
    return Finding(Status.NOTE, sentence, command)


def problem(sentence: str, command: str | None = None) -> Finding:
    return Finding(Status.PROBLEM, sentence, command)


def pip(arguments: str) -> str:
    """The command of this very Python's pip: another `pip` may come first in PATH."""
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{shlex.quote(str(python))} -m pip {arguments}"


def set_variable(name: str, value: str) -> str:
    """The shell's command that sets an environment variable."""
    return f"export {name}={shlex.quote(value)}"


def first_line(error: BaseException | str) -> str:
    """The first line of a message that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)


def why(error: OSError) -> str:
    """The system's words alone; the caller names the path."""
    return error.strerror or first_line(error)


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0
