"""`tiny-vllm bench`: how fast the engine is, beside what the machine allows."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from tiny_vllm import cli_bench_ops, cli_bench_start, cli_bench_table
from tiny_vllm.cli_engine import add_engine_options, engine_settings
from tiny_vllm.errors import UserError

if TYPE_CHECKING:
    from tiny_vllm.bench.workload import Workload


def add_parser(commands: Any) -> None:
    """The options of `bench throughput` and `bench latency`; the other kinds have files of their own."""
    parser = commands.add_parser("bench", help="measure the engine")
    kinds = parser.add_subparsers(title="what to measure", dest="kind", required=True, metavar="WHAT")
    throughput = kinds.add_parser("throughput", help="many requests at once: tokens a second")
    throughput.add_argument("--num-prompts", type=int, default=256, metavar="N", help="requests (default: %(default)s)")
    throughput.add_argument(
        "--workload",
        choices=("nano-vllm", "uniform"),
        default="nano-vllm",
        help="nano-vllm: lengths uniform from 100 to 1,024 (the default); uniform: --input-len and --output-len",
    )
    latency = kinds.add_parser("latency", help="one batch of equal requests: seconds until it is done")
    latency.add_argument("--batch-size", type=int, default=8, metavar="N", help="requests (default: %(default)s)")
    for each in (throughput, latency):
        each.add_argument("--input-len", type=int, metavar="N", help="tokens a prompt (default: 32)")
        each.add_argument("--output-len", type=int, metavar="N", help="tokens an answer (default: 128)")
        each.add_argument("--seed", type=int, default=0, metavar="S", help="of the prompts (default: 0)")
        each.add_argument("--json", action="store_true", help="print one JSON object")
        add_engine_options(each)
        each.set_defaults(run=run)
    for each in (cli_bench_table, cli_bench_ops, cli_bench_start):
        each.add_parser(kinds)


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print what came out."""
    _check_sizes(arguments)
    from tiny_vllm.bench.throughput import throughput
    from tiny_vllm.llm import LLM

    with LLM(arguments.model, **engine_settings(arguments)) as llm:
        workload = _workload(arguments, llm.config.vocab_size)
        if workload.longest > llm.max_model_len:
            raise UserError(
                f"the longest request has {workload.longest} tokens and max_model_len is {llm.max_model_len}; "
                "give shorter lengths, or a model that takes more"
            )
        result = throughput(llm, workload)
        about = {"model": llm.model, "device": llm.device.description, "dtype": llm.dtype.name, "kind": arguments.kind}
        about |= {"graphs": llm.stats().num_graphs, "async_scheduling": llm.async_scheduling}
    if arguments.json:
        print(json.dumps(about | result.as_dict()))
    else:
        print(" | ".join(f"{name} {value}" for name, value in about.items()))
        print(result)
    return 0


def _check_sizes(arguments: argparse.Namespace) -> None:
    """Fill in the lengths; UserError for one below 1, or one that the workload would not look at."""
    if arguments.kind == "throughput" and arguments.workload != "uniform":
        for name in ("input_len", "output_len"):
            if getattr(arguments, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{option} is for --workload uniform; {arguments.workload} draws its own lengths")
    arguments.input_len = 32 if arguments.input_len is None else arguments.input_len
    arguments.output_len = 128 if arguments.output_len is None else arguments.output_len
    for name in ("num_prompts", "batch_size", "input_len", "output_len"):
        if getattr(arguments, name, 1) < 1:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(arguments, name)}; give at least 1")


def _workload(arguments: argparse.Namespace, vocab_size: int) -> Workload:
    from tiny_vllm.bench.workload import TOP_ID, nano_vllm, uniform

    top_id = min(TOP_ID, vocab_size - 1)
    if arguments.kind == "latency":
        return uniform(arguments.batch_size, arguments.input_len, arguments.output_len, top_id, arguments.seed)
    if arguments.workload == "uniform":
        return uniform(arguments.num_prompts, arguments.input_len, arguments.output_len, top_id, arguments.seed)
    return nano_vllm(arguments.num_prompts, top_id, arguments.seed)
