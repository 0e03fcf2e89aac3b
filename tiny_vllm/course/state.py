"""What a student has done so far, beside the files: work/.course.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tiny_vllm.course.files import work_folder, write_atomic
from tiny_vllm.errors import UserError

FILE, LOCK = ".course.json", ".course.lock"
WAIT = 30  # seconds that a command waits for another one's writing, which takes far less
LOST = "the hints, results, predictions and find-the-fault answers in it start again, your files stay"


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
        """Write it whole or not at all. What another command wrote since it was loaded is lost: see changing."""
        write_atomic(self.work / FILE, self.text())

    def text(self) -> str:
        """What the file holds."""
        tables = {name: getattr(self, name) for name in _TABLES}
        return json.dumps(tables, indent=1, sort_keys=True) + "\n"


_TABLES = tuple(each.name for each in fields(State) if each.name != "work")
_NUMBER = (int, float)
_KINDS: dict[str, Any] = {  # of an entry: its type, or the types of its parts
    "hints": int,
    "give_ups": bool,
    "answers": {"line": int, "kind": str, "repair": str, "repair_after": bool},
    "cells": str,
    "results": {"score": _NUMBER, "max": _NUMBER, "passed": bool, "solved": bool, "body": str},
    "skeletons": str,
}


def load(work: Path | None = None) -> State:
    """The state of a work folder, the reader's own if left out, to be read; empty where nothing was done yet.

    UserError for a file that was damaged.
    """
    work = work or work_folder()
    path = work / FILE
    try:
        return State(work, **parse(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return State(work)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}; move it away ({LOST})") from None


@contextmanager
def changing(work: Path | None = None) -> Iterator[State]:
    """The state as it is now, written at the end of the block; other commands wait for that. No block in another."""
    work = work or work_folder()
    lock = FileLock(work / LOCK, timeout=WAIT)
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise UserError(f"another command has been writing {work / FILE} for {WAIT} s; end it, and try again") from None
    except OSError as error:
        raise UserError(f"{work} cannot be written: {error.strerror or error}; see to its permissions") from None
    try:
        state = load(work)
        before = state.text()
        yield state
        if state.text() != before:
            state.save()
    finally:
        lock.release()


def parse(text: str) -> dict[str, dict[str, Any]]:
    """The tables that a file holds, by their names. ValueError that says what in it is of the wrong kind."""
    data = json.loads(text)
    if not isinstance(data, dict) or not all(isinstance(each, dict) for each in data.values()):
        raise ValueError("it is no table of tables")
    for name, kind in _KINDS.items():
        for id, entry in data.get(name, {}).items():
            if not _fits(entry, kind):
                raise ValueError(f"{name} of {id} cannot be {json.dumps(entry):.60}")
    return {name: data[name] for name in _TABLES if name in data}


def _fits(entry: Any, kind: Any) -> bool:
    if isinstance(kind, dict):
        known = isinstance(entry, dict) and entry.keys() == kind.keys()
        return known and all(isinstance(entry[part], each) for part, each in kind.items())
    return isinstance(entry, kind)
