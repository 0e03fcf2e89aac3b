"""`tiny-vllm bench table`: our engine beside its peers on this machine, as a table, JSON and a roofline."""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiny_vllm.errors import UserError

if TYPE_CHECKING:
    from tiny_vllm.bench.table.contenders.base import Setup
    from tiny_vllm.bench.table.result import Table
    from tiny_vllm.bench.table.rows import TableRow

PEERS = ("transformers", "compile", "vllm")
FULL_MEMORY = 0.9  # of a GPU's, for all contenders together
ROUND_LENGTH = 1024  # max_model_len is a multiple of it


def add_parser(kinds: Any) -> None:
    """The options of `bench table`."""
    parser = kinds.add_parser("table", help="our engine beside its peers, row by row")
    add_common_options(parser)
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="ROW",
        help="decode-1 decode-8 decode-64 decode-256 first-token prefill nano-vllm start (default: all), or sizes of "
        "your own: decode:8x128+256, prefill:32x2000, first-token:4000, nano-vllm:256",
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="samples of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the roofline (needs matplotlib)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 where a row fails")
    parser.set_defaults(run=run)


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """What `bench start` takes too."""
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a folder with a checkpoint")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=PEERS,
        default=list(PEERS),
        help="those beside ours, each where it is installed (default: all; none after --peers: ours alone)",
    )
    parser.add_argument("--device", choices=("auto", "cuda", "emulator"), default="auto", help="of our engine")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto")
    parser.add_argument(
        "--timeout", type=float, default=300, metavar="S", help="seconds for one answer (default: %(default)s)"
    )
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep what the processes print")


def run(arguments: argparse.Namespace) -> int:
    """Measure; the table is written after every row, so that a run that is cut short leaves what it has."""
    from tiny_vllm.bench.table.plot import check_plot
    from tiny_vllm.bench.table.report import markdown
    from tiny_vllm.bench.table.rows import STANDARD, parse_row
    from tiny_vllm.bench.table.run import Plan, run_table

    if arguments.repeats < 1:
        raise UserError(f"--repeats is {arguments.repeats}; give at least 1")
    rows = [parse_row(text) for text in dict.fromkeys(arguments.rows or STANDARD)]
    for file in (arguments.json, arguments.markdown, arguments.plot):
        if file is not None and not file.parent.is_dir():
            raise UserError(f"{file.parent} is not a folder; make it before, or name another file than {file}")
    if arguments.plot is not None:
        check_plot(arguments.plot)
    with logs_folder(arguments.logs) as logs, terminated_by_exit():
        names = contenders(arguments)
        plan = Plan(names, make_setup(arguments, rows, names), arguments.repeats, arguments.timeout, logs)
        table = run_table(plan, rows, lambda table: _write(arguments, table))
    print(f"\n{markdown(table)}")
    return 1 if arguments.strict and not table.all_pass else 0


def contenders(arguments: argparse.Namespace) -> list[str]:
    """Ours, and the peers that were asked for."""
    return ["ours", *dict.fromkeys(arguments.peers)]


def make_setup(arguments: argparse.Namespace, rows: list[TableRow], names: list[str]) -> Setup:
    """What every contender starts with; UserError where a row has more tokens than the model takes."""
    from tiny_vllm.bench.table.contenders import missing
    from tiny_vllm.bench.table.contenders.base import Setup
    from tiny_vllm.models.config import ModelConfig

    limit = ModelConfig.from_folder(arguments.model).max_position_embeddings
    longest = {row.name: max(prompt + answer for prompt, answer in row.lengths) for row in rows}
    if too_long := [f"{name} ({length})" for name, length in longest.items() if length > limit]:
        raise UserError(f"{', '.join(too_long)}: longer than the {limit} tokens that the model takes; leave them out")
    length = min(limit, -(-max(longest.values()) // ROUND_LENGTH) * ROUND_LENGTH)
    share = FULL_MEMORY / max(1, sum(missing(name) is None for name in names))
    return Setup(str(Path(arguments.model).absolute()), length, share, arguments.device, arguments.dtype)


@contextmanager
def terminated_by_exit() -> Iterator[None]:
    """SIGTERM ends this process as an exception does: with all that it started."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def logs_folder(wanted: Path | None) -> Iterator[Path]:
    """The folder that was asked for, or one that goes again."""
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="tiny-vllm-bench-") as folder:
            yield Path(folder)
    else:
        wanted.mkdir(parents=True, exist_ok=True)
        yield wanted


def _write(arguments: argparse.Namespace, table: Table) -> None:
    from tiny_vllm.bench.table.plot import save_roofline
    from tiny_vllm.bench.table.report import markdown

    if arguments.json:
        arguments.json.write_text(json.dumps(table.as_dict(), indent=1) + "\n", encoding="utf-8")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(table), encoding="utf-8")
    if arguments.plot and any(each.work for each in table.rows):
        save_roofline(table, arguments.plot)
