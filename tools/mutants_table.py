#!/usr/bin/env python3
"""The wrong answers of a chapter as a table for its lecturer's page, made of the mutants' own headers.

python tools/mutants_table.py 3             print it
python tools/mutants_table.py 3 --write     put it between the marks of docs/lecturer/03_rms_norm.md
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- mutants: made by tools/mutants_table.py -->", "<!-- mutants end -->"
GROUPS = ("basic", "tails", "numbers", "limits", "clean")
HEADER = re.compile(
    r"wrong because: ([^|]+) \| caught by: ([^|]+) \| looks right on: ([^|]+) \| exercise: (\d+\.\d+)", re.DOTALL
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapter", type=int)
    parser.add_argument("--write", action="store_true", help="into the lecturer's page")
    args = parser.parse_args()
    folder = next(iter((ROOT / "chapters").glob(f"ch{args.chapter:02d}_*")), None)
    if folder is None:
        sys.exit(f"there is no chapter {args.chapter} in chapters/; give the number of one that is")
    if args.write:
        page = ROOT / "docs" / "lecturer" / f"{folder.name.removeprefix('ch')}.md"
        page.write_text(filled(page.read_text(encoding="utf-8"), folder), encoding="utf-8")
    else:
        print(table(folder))
    return 0


def filled(page: str, folder: Path) -> str:
    """The page with the chapter's table between its marks; ValueError where it has none."""
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return f"{page[:start]}\n{table(folder)}\n{page[end:]}"


def table(folder: Path) -> str:
    """A row a mutant, by exercise and by the group that catches it."""
    rows = [row(path) for path in (folder / "mutants").iterdir() if path.suffix in (".cu", ".py")]
    rows.sort(key=lambda cells: (cells[0], GROUPS.index(cells[3].partition("/")[0]), cells[1]))
    head = ("exercise", "file", "what the student thought", "caught by", "looks right on")
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def row(path: Path) -> tuple[str, ...]:
    lines = path.read_text(encoding="utf-8").splitlines()[:4]
    match = HEADER.search(" ".join(line.lstrip("/# ").strip() for line in lines))
    if match is None:
        raise ValueError(f"{path.name} has no header")
    why, caught, right, exercise = (part.strip() for part in match.groups())
    return exercise, path.name, why, caught, right


if __name__ == "__main__":
    sys.exit(main())
