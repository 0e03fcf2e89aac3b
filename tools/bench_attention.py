#!/usr/bin/env python3
"""How fast attention over the paged cache is on this GPU, beside what its memory and tensor cores allow.

    python tools/bench_attention.py                       # the shapes of Llama-3.2-1B
    python tools/bench_attention.py --attention plain     # kernels/attention.cu, which holds everywhere
    python tools/bench_attention.py --head-dim 128 --heads 32 --kv-heads 8 --dtype float16

decode    one new token a request. Bytes: keys and values of every context, once; floor: at the device's bandwidth.
prefill   a prompt or a chunk of one. Work: 4 * head_dim operations for each query head and each pair of a token and a
          key that it sees (two products); TFLOP/s.
Each figure is the median of many launches in one captured graph, whose inputs rotate over more than any L2 cache
holds; what a launch costs on the device is part of it. Times differ from run to run: compare within one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from tiny_vllm.device import get_device
from tiny_vllm.device.base import Device
from tiny_vllm.device.source import as_dtype
from tiny_vllm.ops.tuned import TunedOps
from tiny_vllm.types import StepMeta

BLOCK_SIZE = 16
ROTATE_BYTES = 320 << 20  # an H200 has 50 MB of L2
MOST_COPIES, REPEATS = 1500, 20
DECODE = [(batch, context) for batch in (1, 8, 64, 256) for context in (128, 512, 2048)]
PREFILL = {"1 x 4096": (1, 4096, 0), "32 x 2000": (32, 2000, 0), "1 x 2048 after 6144": (1, 2048, 6144)}


@dataclass(frozen=True)
class Step:
    """requests, each of `new` tokens after `context` that the cache holds."""

    requests: int
    new: int
    context: int

    @property
    def tokens(self) -> int:
        return self.requests * self.new

    @property
    def blocks(self) -> int:
        """Of one request."""
        return -(-(self.context + self.new) // BLOCK_SIZE)


def main() -> None:
    args = parse()
    device = get_device(args.device)
    config = SimpleNamespace(
        num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, head_dim=args.head_dim, rms_norm_eps=1e-5
    )
    ops = TunedOps(device, config, as_dtype(args.dtype), args.attention)
    print(
        f"{device.description}, {args.heads} heads on {args.kv_heads}, head_dim {args.head_dim}, {args.dtype}", end=""
    )
    print(f", attention {args.attention}, bandwidth {device.bandwidth() / 1e12:.2f} TB/s")
    if args.what in ("decode", "all"):
        decode(ops, args)
    if args.what in ("prefill", "all"):
        prefill(ops, args)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("decode", "prefill", "all"), default="all")
    parser.add_argument("--device", choices=("auto", "cuda", "emulator"), default="auto")
    parser.add_argument("--attention", choices=("auto", "plain", "paged"), default="auto")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="the smallest step of each kind, to see that it runs")
    return parser.parse_args()


def decode(ops: TunedOps, args: argparse.Namespace) -> None:
    for batch, context in DECODE[:1] if args.quick else DECODE:
        seconds = measure(ops, Step(batch, 1, context - 1), args)
        size = batch * context * args.kv_heads * 2 * args.head_dim * as_dtype(args.dtype).itemsize
        rate, floor = size / seconds, size / ops.device.bandwidth()
        print(
            f"decode  {batch:3} x {context:4}  {seconds * 1e6:8.1f} us  {rate / 1e9:6.0f} GB/s"
            f"  {floor / seconds:4.0%} of the bandwidth  (floor {floor * 1e6:.1f} us)"
        )


def prefill(ops: TunedOps, args: argparse.Namespace) -> None:
    steps = {"1 x 64": (1, 64, 0)} if args.quick else PREFILL
    for name, (requests, new, context) in steps.items():
        seconds = measure(ops, Step(requests, new, context), args)
        pairs = requests * (new * context + new * (new + 1) // 2)
        work = 4 * args.head_dim * args.heads * pairs
        print(f"prefill {name:20}  {seconds * 1e6:8.1f} us  {work / seconds / 1e12:6.1f} TFLOP/s")


def measure(ops: TunedOps, step: Step, args: argparse.Namespace) -> float:
    """Seconds of one launch of the step."""
    device, dtype = ops.device, as_dtype(args.dtype)
    shape = (step.requests * step.blocks, args.kv_heads, 2, BLOCK_SIZE, args.head_dim)
    copies = max(2, min(MOST_COPIES, -(-ROTATE_BYTES // (int(np.prod(shape)) * dtype.itemsize))))
    if args.quick:
        copies = 2
    columns = args.heads * args.head_dim
    rng = np.random.default_rng(0)
    q = filled(device, rng, (step.tokens, columns + 2 * args.kv_heads * args.head_dim), dtype)[:, :columns]
    caches = [filled(device, rng, shape, dtype) for _ in range(copies)]
    out, meta = device.empty((step.tokens, columns), dtype), plan(device, rng, step)
    ops.reserve(step.tokens, step.requests, step.context + step.new)

    def launch() -> None:
        for cache in caches:
            ops.attention(q, cache, meta, out=out)

    return replayed(device, launch, copies)


def replayed(device: Device, launches: Callable[[], None], count: int) -> float:
    """Seconds of one of the `count` launches: the median over replays of a graph that holds them all."""
    launches()  # compiles
    with device.capture() as graph:
        launches()
    start, end, seconds = device.event(), device.event(), []
    for _ in range(REPEATS):
        start.record()
        graph.launch()
        end.record()
        end.synchronize()
        seconds.append(end.elapsed_ms(start) / 1e3 / count)
    return statistics.median(seconds[2:])


def plan(device: Device, rng: np.random.Generator, step: Step) -> StepMeta:
    """Requests of equal lengths whose blocks lie in no order."""
    table = rng.permutation(step.requests * step.blocks).reshape(step.requests, step.blocks)
    length, each = step.context + step.new, np.arange(step.requests)
    positions = np.tile(np.arange(step.context, length), step.requests)
    slots = table.repeat(step.new, axis=0)[np.arange(step.tokens), positions // BLOCK_SIZE] * BLOCK_SIZE
    values: dict[str, Any] = {
        "positions": positions,
        "slot_mapping": slots + positions % BLOCK_SIZE,
        "query_start_loc": np.arange(step.requests + 1) * step.new,
        "seq_lens": np.full(step.requests, length),
        "block_table": table,
        "logits_indices": (each + 1) * step.new - 1,
    }
    arrays = {name: device.asarray(np.ascontiguousarray(value, np.int32)) for name, value in values.items()}
    return StepMeta(**arrays, query_lens_host=[step.new] * step.requests, seq_lens_host=[length] * step.requests)


def filled(device: Device, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Random values, of which a piece of a million is repeated: the kernels' time does not depend on them."""
    piece = rng.standard_normal(1 << 20, dtype=np.float32).astype(dtype)
    return device.asarray(np.resize(piece, shape))


if __name__ == "__main__":
    main()
