"""`tiny-vllm course update`: pull the newest chapters and put your answers into them.

Notebooks under notebooks/ that were changed are copied to work/.attic/ and put back; then `git pull --ff-only`; then
each file of work/ whose skeleton has changed gets the new one, with your regions in it. A notebook in work/ whose cells
you changed stays, and the new one is written beside it.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tiny_vllm.course import chapters_folder, markers
from tiny_vllm.course.chapter import Chapter, chapters
from tiny_vllm.course.files import keep, read_source, work_folder, write_atomic
from tiny_vllm.course.skeletons import all_of, fingerprint, put
from tiny_vllm.course.state import State, changing
from tiny_vllm.errors import UserError


def run(arguments: argparse.Namespace) -> int:
    root, work = chapters_folder().parent, work_folder()
    if not (root / ".git").exists():
        raise UserError("this copy of the course is no git clone, so it cannot be updated; ask who gave it to you")
    for line in (*_rescue(root, work), _pull(root), *put_back(work)):
        print(line, flush=True)
    return 0


def _rescue(root: Path, work: Path) -> Iterator[str]:
    """Keep the changed notebooks, and put git's back, so that the pull finds nothing in its way."""
    for name in filter(None, _git(root, "diff", "--name-only", "-z", "HEAD", "--", "notebooks/").split("\0")):
        if (root / name).is_file():
            yield f"{name} had your changes: they are in {keep(root / name, work, name)}"
        _git(root, "checkout", "HEAD", "--", name)


def _pull(root: Path) -> str:
    before = _git(root, "rev-parse", "HEAD")
    if not _git(root, "for-each-ref", "--format=%(upstream)", _git(root, "rev-parse", "--symbolic-full-name", "HEAD")):
        raise UserError(
            "this clone is on no branch that new chapters come to; `git switch main`, or "
            "`git branch --set-upstream-to=origin/main` for a branch of your own, then run it again"
        )
    _git(root, "pull", "--ff-only")
    count = int(_git(root, "rev-list", "--count", f"{before}..HEAD"))
    return f"pulled {count} commit{'s' if count != 1 else ''}" if count else "the chapters are the newest already"


def put_back(work: Path) -> Iterator[str]:
    """Write the new skeletons with the student's regions in them; one line for each file that changed."""
    with changing(work) as state:
        for chapter in chapters():
            for file, new in all_of(chapter).items():
                known = state.skeletons.get(f"{chapter.name}/{file}")
                path = work / chapter.name / file
                if path.is_file() and known != fingerprint(new, file):
                    renew = _renew_notebook if file.endswith(".ipynb") else _renew
                    yield f"{work.name}/{chapter.name}/{file}{renew(chapter, path, new, state)}"


def _renew(chapter: Chapter, path: Path, new: str, state: State) -> str:
    try:
        written = markers.solved(read_source(path), path.name)
    except UserError as error:
        return f" stays as it is: {error}"
    gone = sorted(set(written) - set(markers.bodies(new)))
    lost = f"; exercise {', '.join(gone)} is no more" if gone else ""
    return f" is new around your answers{lost}{put(chapter, path.name, markers.fill(new, written), new, state)}"


def _renew_notebook(chapter: Chapter, path: Path, new: str, state: State) -> str:
    noted, cells = f"{chapter.name}/{path.name}", fingerprint(read_source(path), path.name)
    now = fingerprint(new, path.name)
    if cells in (state.skeletons.get(noted), now):
        return f" is new{put(chapter, path.name, new, new, state)}"
    beside = path.with_suffix(".new.ipynb")
    write_atomic(beside, new)
    state.skeletons[noted] = now
    return f" has your changes and stays; the new one is {state.work.name}/{chapter.name}/{beside.name}"


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise UserError(f"git does not run ({error.strerror}); install it, or download the chapters anew") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [""]
        reason = next((line for line in said if line.startswith(("error", "fatal"))), said[0])
        raise UserError(
            f"git {arguments[0]} stopped ({reason.strip()[:200]}); nothing of yours is lost: mend that, "
            "or move your own changes outside work/ away with `git stash`, and run it again"
        )
    return done.stdout.strip()
