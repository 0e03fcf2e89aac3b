"""What a student has done so far, beside the files: work/.course.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tiny_vllm.course.files import write_atomic
from tiny_vllm.errors import UserError

FILE = ".course.json"


@dataclass
class State:
    """Each by an exercise's or a prediction's id, but for skeletons.

    hints: how many were shown. give_ups: whose answer was shown unsolved. predictions: what was typed. answers: of
    find-the-fault exercises, {line, kind, repair, repair_after}. cells: the body that a notebook's cell wrote last.
    results: {score, max, passed, solved, body}, body a hash of what was checked. skeletons: by file of work/, a hash of
    the skeleton that it was written from.
    """

    hints: dict[str, int] = field(default_factory=dict)
    give_ups: dict[str, bool] = field(default_factory=dict)
    predictions: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    skeletons: dict[str, str] = field(default_factory=dict)

    def save(self, work: Path) -> None:
        """Write it whole or not at all."""
        write_atomic(work / FILE, json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")


def load(work: Path) -> State:
    """The state of a work folder; empty where nothing was done yet. UserError for a file that was damaged."""
    path = work / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return State()
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    known = {each.name for each in fields(State)}
    if not isinstance(data, dict) or not all(isinstance(data[name], dict) for name in known & set(data)):
        raise _damaged(path, "it is no table of tables")
    return State(**{name: value for name, value in data.items() if name in known})


def _damaged(path: Path, why: str) -> UserError:
    return UserError(
        f"{path} cannot be read: {why}; move it away (hints and predictions start again, no answer is lost)"
    )
