"""What a student has done so far, beside the files: work/.course.json."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tiny_vllm.course.files import work_folder, write_atomic
from tiny_vllm.errors import UserError

FILE = ".course.json"


@dataclass
class State:
    """work: the folder. The rest are tables by an exercise's or a prediction's id, but for skeletons.

    hints: how many were shown. give_ups: whose answer was shown unsolved. predictions: what was typed. answers: of
    find-the-fault exercises, {line, kind, repair, repair_after}. cells: the body that a notebook's cell wrote last.
    results: {score, max, passed, solved, body}, body a hash of what was checked. skeletons: by file of work/, a hash of
    the skeleton or the notebook that it was written from.
    """

    work: Path
    hints: dict[str, int] = field(default_factory=dict)
    give_ups: dict[str, bool] = field(default_factory=dict)
    predictions: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    skeletons: dict[str, str] = field(default_factory=dict)

    def save(self) -> None:
        """Write it whole or not at all."""
        tables = {name: getattr(self, name) for name in _TABLES}
        write_atomic(self.work / FILE, json.dumps(tables, indent=1, sort_keys=True) + "\n")


_TABLES = tuple(each.name for each in fields(State) if each.name != "work")


def load(work: Path | None = None) -> State:
    """The state of a work folder, the reader's own if left out; empty where nothing was done yet.

    UserError for a file that was damaged.
    """
    work = work or work_folder()
    path = work / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or not all(isinstance(each, dict) for each in data.values()):
            raise ValueError("it is no table of tables")
    except FileNotFoundError:
        return State(work)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read: {error}; move it away (hints and predictions start again, no answer is lost)"
        ) from None
    return State(work, **{name: data[name] for name in _TABLES if name in data})
