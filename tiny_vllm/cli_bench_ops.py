"""`tiny-vllm bench ops`: every operation of a step on its own, beside its floor; a set of operations is a column.

With --ladder a line is a rung: the kernels of an operation from the course's first to the engine's own.
"""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Any

from tiny_vllm.errors import UserError

if TYPE_CHECKING:
    from tiny_vllm.bench.ops.inputs import Step
    from tiny_vllm.bench.ops.operation import Operation
    from tiny_vllm.bench.ops.timer import Machine
    from tiny_vllm.models.config import ModelConfig

    Measured = tuple[Machine | None, str, list[dict[str, Any]], str]  # ..., key and value in JSON, a Markdown table

SETS, DEFAULT_SETS = ("tuned", "plain", "course"), ("tuned", "course")
SHAPE_NAMES = ("llama-3.2-1b", "smollm2-135m")
PREFILL = re.compile(r"(\d+)x(\d+)(?:\+(\d+))?")


def add_parser(kinds: Any) -> None:
    """The options of `bench ops`."""
    parser = kinds.add_parser("ops", help="each operation of a step on its own, beside its floor")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model-shape", choices=SHAPE_NAMES, default=SHAPE_NAMES[0], help="default: %(default)s")
    model.add_argument("--model", metavar="FOLDER", help="the shape of this folder's config.json instead")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1, 8, 64, 256], metavar="N", help="tokens a step (default: 1 8 64 256)"
    )
    parser.add_argument(
        "--context", type=int, default=512, metavar="N", help="keys that a token of a decode step sees (default: 512)"
    )
    parser.add_argument(
        "--prefill",
        nargs="+",
        metavar="RxN[+C]",
        help="attention over R prompts of N tokens, after C that the cache holds (default: one of --context tokens)",
    )
    parser.add_argument(
        "--ops",
        nargs="+",
        choices=SETS,
        help="tuned: kernels/; plain: the same with attention.cu and without fused stages; course: the chapters' "
        "(default: tuned course)",
    )
    parser.add_argument(
        "--ladder", action="store_true", help="every kernel of the course too, from the first to the engine's own"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="operations whose names begin so, as attention or 'linear qkv'"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "emulator"), default="auto")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print what came out."""
    for name, value in [("rows", each) for each in arguments.rows] + [("context", arguments.context)]:
        if value < 1:
            raise UserError(f"--{name} is {value}; give at least 1")
    if arguments.ladder and arguments.ops:
        raise UserError("--ladder has every set of operations; leave out --ops")
    from tiny_vllm.device import get_device
    from tiny_vllm.models.dtype import resolve_dtype

    config, device = _config(arguments), get_device(arguments.device)
    dtype = resolve_dtype(arguments.dtype, config, device)
    about = {"model": arguments.model or arguments.model_shape, "device": device.description, "dtype": dtype.name}
    cases = _cases(arguments, config, dtype)
    machine, key, found, text = (_ladder if arguments.ladder else _sets)(arguments, device, config, dtype, cases)
    rates = {"bytes_per_second": machine and machine.bandwidth, "flops_per_second": machine and machine.flops}
    if arguments.json:
        print(json.dumps(about | rates | {"context": arguments.context, key: found}))
        return 0
    print(" | ".join(f"{name} {value}" for name, value in about.items()))
    if machine is None:
        print("No times: the emulator's say nothing about a GPU. What an operation must move and compute:")
    else:
        print(f"floor: {machine.bandwidth / 1e9:,.0f} GB/s, {machine.flops / 1e12:.3g} TFLOP/s, both measured here")
    print(f"\n{text}")
    return 0


def _cases(arguments: argparse.Namespace, config: ModelConfig, dtype: Any) -> list[Operation]:
    """The operations that were asked for; UserError where --only leaves none."""
    from tiny_vllm.bench.ops.operations import operations

    prefill = [_step(text) for text in arguments.prefill or [f"1x{arguments.context}"]]
    cases = list(operations(config, dtype, dict.fromkeys(arguments.rows), arguments.context, prefill))
    wanted = [each for each in cases if not arguments.only or each.name.startswith(tuple(arguments.only))]
    if not wanted:
        names = ", ".join(dict.fromkeys(each.name for each in cases))
        raise UserError(f"--only is {' '.join(arguments.only)!r}; the operations are {names}")
    return wanted


def _sets(arguments: argparse.Namespace, device: Any, config: ModelConfig, dtype: Any, cases: Any) -> Measured:
    from tiny_vllm.bench.ops.report import as_dicts, table
    from tiny_vllm.bench.ops.timer import measure

    names = dict.fromkeys(arguments.ops or DEFAULT_SETS)
    machine, rows = measure(device, dtype, {name: _make(name, device, config, dtype) for name in names}, cases)
    return machine, "operations", as_dicts(machine, rows), table(machine, rows)


def _ladder(arguments: argparse.Namespace, device: Any, config: ModelConfig, dtype: Any, cases: Any) -> Measured:
    from tiny_vllm.bench.ops.inputs import Inputs
    from tiny_vllm.bench.ops.ladder import climb, ladder_dicts, ladder_table, rungs
    from tiny_vllm.bench.ops.timer import Timer

    timer = None if device.name == "emulator" else Timer(Inputs(device, dtype))
    machine = None if timer is None else timer.machine()
    times = list(climb(timer, rungs(device, config, dtype), cases))
    return machine, "ladder", ladder_dicts(machine, times), ladder_table(machine, times)


def _config(arguments: argparse.Namespace) -> ModelConfig:
    from tiny_vllm.models.config import ModelConfig
    from tiny_vllm.models.shapes import SHAPES

    return ModelConfig.from_folder(arguments.model) if arguments.model else SHAPES[arguments.model_shape]


def _step(text: str) -> Step:
    from tiny_vllm.bench.ops.inputs import Step

    found = PREFILL.fullmatch(text)
    requests, new, cached = (int(each or 0) for each in found.groups()) if found else (0, 0, 0)
    if not requests or not new:
        raise UserError(f"--prefill is {text!r}; give prompts x tokens, as 32x2000, or 1x2048+6144 after a cached part")
    return Step(requests, new, cached)


def _make(name: str, device: Any, config: ModelConfig, dtype: Any) -> Any:
    if name == "course":
        from tiny_vllm.course import load_course_ops

        return load_course_ops(device, config, dtype)
    from tiny_vllm.ops.tuned import TunedOps

    return TunedOps(device, config, dtype, *(("plain", "composed") if name == "plain" else ()))
