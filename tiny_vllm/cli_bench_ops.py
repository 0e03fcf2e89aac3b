"""`tiny-vllm bench ops`: every operation of a step on its own, beside its floor; a set of operations is a column."""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Any

from tiny_vllm.errors import UserError

if TYPE_CHECKING:
    from tiny_vllm.engine.bench_ops.inputs import Step
    from tiny_vllm.models.config import ModelConfig

SETS = ("tuned", "plain", "course")
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
        default=["tuned", "course"],
        help="tuned: kernels/; plain: the same with attention.cu; course: the chapters' (default: tuned course)",
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
    from tiny_vllm.device import get_device
    from tiny_vllm.engine.bench_ops.operations import operations
    from tiny_vllm.engine.bench_ops.report import as_dicts, table
    from tiny_vllm.engine.bench_ops.timer import measure
    from tiny_vllm.models.dtype import resolve_dtype

    prefill = [_step(text) for text in arguments.prefill or [f"1x{arguments.context}"]]
    config, device = _config(arguments), get_device(arguments.device)
    dtype = resolve_dtype(arguments.dtype, config, device)
    sets = {name: _make(name, device, config, dtype) for name in dict.fromkeys(arguments.ops)}
    cases = operations(config, dtype, dict.fromkeys(arguments.rows), arguments.context, prefill)
    machine, rows = measure(device, dtype, sets, cases)
    about = {"model": arguments.model or arguments.model_shape, "device": device.description, "dtype": dtype.name}
    rates = {"bytes_per_second": machine and machine.bandwidth, "flops_per_second": machine and machine.flops}
    if arguments.json:
        print(json.dumps(about | rates | {"context": arguments.context, "operations": as_dicts(machine, rows)}))
        return 0
    print(" | ".join(f"{name} {value}" for name, value in about.items()))
    if machine is None:
        print("No times: the emulator's say nothing about a GPU. What an operation must move and compute:")
    else:
        print(f"floor: {machine.bandwidth / 1e9:,.0f} GB/s, {machine.flops / 1e12:.3g} TFLOP/s, both measured here")
    print(f"\n{table(machine, rows)}")
    return 0


def _config(arguments: argparse.Namespace) -> ModelConfig:
    from tiny_vllm.models.config import ModelConfig
    from tiny_vllm.models.shapes import SHAPES

    return ModelConfig.from_folder(arguments.model) if arguments.model else SHAPES[arguments.model_shape]


def _step(text: str) -> Step:
    from tiny_vllm.engine.bench_ops.inputs import Step

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

    return TunedOps(device, config, dtype, "plain" if name == "plain" else "auto")
