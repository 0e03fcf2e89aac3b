"""`tiny-vllm course update`: the newest chapters, with your answers in them.

Notebooks under notebooks/ that were changed are copied to work/.attic/ and put back; then `git pull --ff-only`; then
each file of work/ whose skeleton has changed gets the new one, with your regions in it.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiny_vllm.course import chapters_folder, markers, skeletons
from tiny_vllm.course.chapter import Chapter, chapters
from tiny_vllm.course.files import keep_as, read_source, work_folder
from tiny_vllm.course.state import State, load
from tiny_vllm.errors import UserError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("update", help="pull the newest chapters and put your answers into them")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    root, work = chapters_folder().parent, work_folder()
    for line in (*_rescue(root, work), _pull(root), *put_back(work)):
        print(line, flush=True)
    return 0


def _rescue(root: Path, work: Path) -> Iterator[str]:
    """Keep the changed notebooks, and put git's back, so that the pull finds nothing in its way."""
    for name in _git(root, "diff", "--name-only", "-z", "HEAD", "--", "notebooks/").split("\0"):
        if not name:
            continue
        if (root / name).is_file():
            kept = keep_as(root / name, work / ".attic" / name)
            yield f"{name} had your changes: they are in {work.name}/{kept.relative_to(work).as_posix()}"
        _git(root, "checkout", "HEAD", "--", name)


def _pull(root: Path) -> str:
    before = _git(root, "rev-parse", "HEAD")
    _git(root, "pull", "--ff-only")
    after = _git(root, "rev-parse", "HEAD")
    if before == after:
        return "the chapters are the newest already"
    count = int(_git(root, "rev-list", "--count", f"{before}..{after}"))
    return f"pulled {count} commit{'s' if count != 1 else ''}"


def put_back(work: Path) -> Iterator[str]:
    """Write the new skeletons with the student's regions in them; one line for each file that changed."""
    state = load(work)
    for chapter in chapters():
        for file in chapter.files:
            yield from _renew(chapter, file, work, state)
    if state.skeletons:
        state.save(work)


def _renew(chapter: Chapter, file: str, work: Path, state: State) -> Iterator[str]:
    path, name = work / chapter.name / file, f"{work.name}/{chapter.name}/{file}"
    new = skeletons.skeleton_of(chapter, file)
    if not path.is_file() or state.skeletons.get(f"{chapter.name}/{file}") == skeletons.fingerprint(new):
        return
    try:
        written = {each.id: each.body for each in markers.regions(read_source(path), name) if each.solved}
    except UserError as error:
        yield f"{error}; it stays as it is"
        return
    gone = sorted(set(written) - set(markers.bodies(new)))
    kept = skeletons.put(chapter, file, markers.fill(new, written), work, state)
    assert kept is not None
    old = f"{work.name}/{kept.relative_to(work).as_posix()}"
    lost = f"; exercise {', '.join(gone)} is no more" if gone else ""
    yield f"{name} is new around your answers{lost}; the old file is {old}"


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise UserError(f"git does not run ({error.strerror}); install it, or download the chapters anew") from None
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if line.startswith(("error", "fatal"))), done.stderr)
        raise UserError(
            f"git {arguments[0]} stopped ({said.strip()[:200]}); nothing of yours is lost: mend that, "
            "or move your own changes outside work/ away with `git stash`, and run it again"
        )
    return done.stdout.strip()
