#!/usr/bin/env python3
"""How long each rung of chapter 03 takes on this GPU, beside its floor (rows for docs/performance.md).

    python tools/time_rungs.py --rows 256 --hidden 2048

Each number is the median over 50 replays of a CUDA graph of 20 launches, bfloat16, over four pairs of arrays in turn;
after a warm-up, with what fits left in the L2 cache. The floor reads and writes each row once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ml_dtypes
import numpy as np

from chapters.ch03_rms_norm.stage import RMSNormOps
from tiny_vllm.device import get_device
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.errors import UserError

PAIRS, LAUNCHES, REPLAYS, EPS = 4, 20, 50, 1e-5
ENGINE_THREADS = 256
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=128, help="of a block, of the chapter's rungs")
    args = parser.parse_args()
    try:
        device = get_device("cuda")
    except UserError as error:
        sys.exit(f"error: {error}")
    print(f"{device.description}, ({args.rows}, {args.hidden}) bfloat16, {args.threads} threads")
    floor = 2 * args.rows * args.hidden * BFLOAT16.itemsize / device.bandwidth()
    print(f"{'floor':12}{floor * 1e6:10.2f} us")
    for name, launch in launches(device, args.threads).items():
        print(f"{name:12}{measure(device, launch, args.rows, args.hidden):10.2f} us")


def launches(device: Any, threads: int) -> dict[str, Callable[[Any, Any, Any], Any]]:
    """What to time, by name: (x, weight, out) -> one launch."""
    course, tuned = (
        RMSNormOps(device, None, BFLOAT16),
        KernelLibrary(device, BFLOAT16).kernel("rms_norm.cu", "rms_norm"),
    )

    def rung(name: Any) -> Callable[[Any, Any, Any], Any]:
        return lambda x, weight, out: course.rms_norm(x, weight, EPS, out, name, threads)

    def engine(x: Any, weight: Any, out: Any) -> None:
        tuned((x.shape[0],), (ENGINE_THREADS,), (x, weight, out, x.shape[1], EPS))

    return {name: rung(name) for name in ("one_thread", "tree", "warp")} | {"kernels/": engine}


def measure(device: Any, launch: Callable[[Any, Any, Any], Any], rows: int, hidden: int) -> float:
    """Microseconds a launch."""
    rng = np.random.default_rng(0)
    weight = device.asarray(np.ones(hidden), BFLOAT16)
    xs = [device.asarray(rng.normal(size=(rows, hidden)), BFLOAT16) for _ in range(PAIRS)]
    pairs = [(x, device.empty((rows, hidden), BFLOAT16)) for x in xs]
    launch(pairs[0][0], weight, pairs[0][1])
    with device.capture() as graph:
        for i in range(LAUNCHES):
            x, out = pairs[i % PAIRS]
            launch(x, weight, out)
    times = []
    for _ in range(REPLAYS):
        start, end = device.event(), device.event()
        start.record()
        graph.launch()
        end.record()
        end.synchronize()
        times.append(end.elapsed_ms(start))
    return statistics.median(times[REPLAYS // 5 :]) / LAUNCHES * 1e3


if __name__ == "__main__":
    main()
