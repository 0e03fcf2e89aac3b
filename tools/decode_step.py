#!/usr/bin/env python3
"""How long one decode step takes, and how much of that is Python launching kernels (a row for docs/performance.md).

    python tools/decode_step.py MODEL --ops course --dtype bfloat16 --context 128 --steps 50

eager   a step as the engine runs it: Python issues each launch, then waits for the last one
issue   the part of it until the last launch is issued
graph   the same launches replayed as one CUDA graph: what the device itself needs
cpu     CPU time of the process for a step: what counts on the emulator, where other programs share the cores
floor   on the emulator, NumPy's own products of the same weights: a step cannot be quicker (CPU time)
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from tiny_vllm.device import get_device
from tiny_vllm.engine.kv_cache import BLOCK_SIZE, CacheSize, num_blocks
from tiny_vllm.engine.runner import Runner
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.dtype import resolve_dtype
from tiny_vllm.models.hub import resolve_model
from tiny_vllm.models.weights import LlamaWeights, load_weights, weight_bytes
from tiny_vllm.ops import make_ops
from tiny_vllm.types import ScheduledRequest, StepPlan


def main() -> None:
    args = parse()
    device = get_device(args.device)
    folder = resolve_model(args.model)
    config = ModelConfig.from_folder(folder)
    dtype = resolve_dtype(args.dtype, config, device)
    weights = load_weights(folder, config, device, dtype)
    size = CacheSize(BLOCK_SIZE, args.context + 1, 1)
    runner = Runner(device, config, weights, make(args.ops)(device, config, dtype), size, 256, enforce_eager=True)
    fill(runner, args.context)
    seconds = measure(runner, args.context, args.steps)
    if device.name == "emulator":
        seconds["floor"] = statistics.median(products(weights, args.steps))
    cells = " | ".join(f"{name} {value * 1e3:.3f} ms" for name, value in seconds.items())
    print(f"{device.description} | {args.model} {dtype} ops={args.ops} context {args.context} | {cells}")
    print(f"outside the device's own time: {1 - seconds['graph'] / seconds['eager']:.0%} of an eager step")
    print(f"weights {weight_bytes(weights) / 1e6:.1f} MB a step, bandwidth {device.bandwidth() / 1e9:.0f} GB/s")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, a hub id or smollm2-135m")
    parser.add_argument("--ops", choices=("tuned", "course"), default="tuned")
    parser.add_argument("--device", choices=("auto", "cuda", "emulator"), default="auto")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto")
    parser.add_argument("--context", type=int, default=128, help="tokens in the cache, the new one included")
    parser.add_argument("--steps", type=int, default=50, help="the median of so many steps is printed")
    return parser.parse_args()


def make(name: str) -> Callable[..., Any]:
    if name != "course":
        return lambda *args: make_ops(name, *args)
    from tiny_vllm.course import load_course_ops

    return load_course_ops


def fill(runner: Runner, context: int) -> None:
    """Keys and values of context - 1 tokens."""
    ids = np.random.default_rng(0).integers(0, runner.model.config.vocab_size, context).tolist()
    for start in range(0, context - 1, 256):
        runner.forward(plan(ids[start : min(start + 256, context - 1)], start, context))


def plan(ids: list[int], start: int, context: int) -> StepPlan:
    """A step of one request, which owns the cache's blocks in order."""
    blocks = tuple(range(num_blocks(context))) if start == 0 else ()
    part = ScheduledRequest("r", 0, start, tuple(ids), True, num_blocks(context) if start else 0, blocks)
    return StepPlan({"r": len(ids)}, (part,))


def measure(runner: Runner, context: int, steps: int) -> dict[str, float]:
    """Medians in seconds, by name."""
    device = runner.device
    tokens, meta = runner.inputs.lay_out(plan([1], context - 1, context))
    buffers = runner.buffers.take(1, 1)

    def forward() -> None:
        runner.model.forward(tokens, runner.cache, meta, buffers)

    forward()
    device.synchronize()
    rows = [one_step(device, forward) for _ in range(steps)]
    eager, issue, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
    with device.capture() as graph:
        forward()
    graph.launch()
    device.synchronize()
    replays = [one_step(device, graph.launch)[0] for _ in range(steps)]
    return {"eager": eager, "issue": issue, "graph": statistics.median(replays), "cpu": cpu}


def one_step(device: Any, run: Callable[[], None]) -> tuple[float, float, float]:
    """(until it is done, until it is issued, CPU time of this process), in seconds."""
    start, cpu = time.perf_counter(), time.process_time()
    run()
    issued = time.perf_counter()
    device.synchronize()
    return time.perf_counter() - start, issued - start, time.process_time() - cpu


def products(weights: LlamaWeights, steps: int) -> Iterator[float]:
    """CPU seconds of the matrix-vector products of one step, by NumPy alone."""
    matrices = [m for layer in weights.layers for m in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    matrices = [np.asarray(m, np.float32) for m in (*matrices, weights.lm_head)]
    vectors = {m.shape[1]: np.ones(m.shape[1], np.float32) for m in matrices}
    for _ in range(steps):
        start = time.process_time()
        for matrix in matrices:
            matrix @ vectors[matrix.shape[1]]
        yield time.process_time() - start


if __name__ == "__main__":
    main()
