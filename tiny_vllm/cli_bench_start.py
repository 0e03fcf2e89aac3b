"""`tiny-vllm bench start`: from the start of a process to its first token, in processes of their own."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tiny_vllm.cli_bench_table import add_common_options, contenders, logs_folder, make_setup, terminated_by_exit
from tiny_vllm.errors import UserError


def add_parser(kinds: Any) -> None:
    """The options of `bench start`."""
    parser = kinds.add_parser("start", help="process start to first token: the first start, and later ones")
    add_common_options(parser)
    parser.set_defaults(run=run, peers=[])
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="later starts (default: %(default)s)")
    parser.add_argument(
        "--cold", action="store_true", help="begin without compiled kernels: the first start makes them anew"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Start every contender, and print its first start and the median of the later ones."""
    if arguments.repeats < 1:
        raise UserError(f"--repeats is {arguments.repeats}; give at least 1")
    with logs_folder(arguments.logs) as logs, terminated_by_exit():
        found = {name: _measure(arguments, name, logs) for name in contenders(arguments)}
    print(json.dumps(found) if arguments.json else "\n".join(_line(name, each) for name, each in found.items()))
    return 0


def _measure(arguments: argparse.Namespace, name: str, logs: Path) -> dict[str, Any]:
    """Seconds of the first start, of the later ones and their median; or why there are none."""
    from tiny_vllm.bench.table.entrant import Entrant
    from tiny_vllm.bench.table.process import ContenderError
    from tiny_vllm.bench.table.rows import STANDARD

    row = STANDARD["start"]
    entrant = Entrant(name, make_setup(arguments, [row], [name]), logs, arguments.timeout, lambda line: None)
    if why := entrant.refuses(row):
        return {"why": why}
    with tempfile.TemporaryDirectory(prefix="tiny-vllm-cold-") as empty:
        environment = {"CUPY_CACHE_DIR": empty, "TINY_VLLM_CACHE": empty} if arguments.cold else None
        try:
            first, *later = (entrant.start_seconds(turn, environment) for turn in range(1 + arguments.repeats))
        except ContenderError as error:
            return {"why": f"failed: {error}"}
    return {"first": first, "later": later, "median": statistics.median(later)}


def _line(name: str, found: dict[str, Any]) -> str:
    if "why" in found:
        return f"{name}: {found['why']}"
    later = ", ".join(f"{seconds:.2f}" for seconds in found["later"])
    return f"{name}: first start {found['first']:.2f} s; later ones {later} s, median {found['median']:.2f} s"
