#!/usr/bin/env python3
"""The emulator's counters beside Nsight Compute's, kernel by kernel.

    python tools/compare_counters.py                  the emulator's, with no GPU
    python tools/compare_counters.py --ncu            both: runs itself under ncu, which must be on the PATH

Sums over a launch: requests and 32-byte sectors of global loads and stores, and the wavefronts of shared memory, which
are the turns its banks need. Clocks are left as they are (--clock-control none).
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from tiny_vllm.device import get_device
from tiny_vllm.device.source import load_source

METRICS = {
    "load requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "load sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "store sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared load turns": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared store turns": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
}
CODE = """
extern "C" __global__ void copy(const float* x, float* y, int n, int stride) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[(size_t)i * stride % n];
}
template <int WIDTH>
__device__ void transpose(const float* x, float* y, float (*tile)[WIDTH]) {
    tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * 32 + threadIdx.x];
    __syncthreads();
    y[threadIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
extern "C" __global__ void transpose_32(const float* x, float* y) {
    __shared__ float tile[32][32];
    transpose<32>(x, y, tile);
}
extern "C" __global__ void transpose_33(const float* x, float* y) {
    __shared__ float tile[32][33];
    transpose<33>(x, y, tile);
}
"""
Case = tuple[str, str, str, tuple[int, ...], tuple[int, ...], tuple[Any, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ncu", action="store_true", help="measure on the GPU as well")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)  # what runs under ncu
    args = parser.parse_args()
    if args.launch:
        launch(get_device("cuda"))
        return
    ours = [dict.fromkeys(METRICS, 0) | counted for counted in launch(get_device("emulator"), check=True, count=True)]
    theirs = measured() if args.ncu else [{} for _ in ours]
    print("| kernel | " + " | ".join(METRICS) + " |\n" + "| --- " * (len(METRICS) + 1) + "|")
    for case, mine, ncu in zip(cases(), ours, theirs, strict=True):
        cells = (f"{mine[name]:,}" + (f" / {ncu[name]:,}" if ncu else "") for name in METRICS)
        print(f"| {case[0]} | " + " | ".join(cells) + " |")


def cases() -> list[Case]:
    """(label, source, kernel, grid, block, arguments): float arrays and numbers."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1 << 16).astype(np.float32)
    copies: list[Case] = [
        (f"copy, stride {stride}", CODE, "copy", (8,), (256,), (x, np.empty(2048, np.float32), x.size, stride))
        for stride in (1, 2, 32)
    ]
    tile = x[:1024].copy()
    turned: list[Case] = [
        (f"transpose, [32][{width}]", CODE, f"transpose_{width}", (1,), (32, 32), (tile, np.empty_like(tile)))
        for width in (32, 33)
    ]
    rows = x.reshape(32, 2048)
    norm = (rows, np.ones(2048, np.float32), np.empty_like(rows), 2048, 1e-5)
    source = load_source("ch03_rms_norm/rms_norm.cu")
    norms: list[Case] = [(name, source, name, (32,), (256,), norm) for name in ("rms_norm_tree", "rms_norm_warp")]
    return copies + turned + norms


def launch(device: Any, **settings: Any) -> list[dict[str, int]]:
    """Launch each case once; its counts where there are any."""
    found = []
    for _, source, name, grid, block, values in cases():
        kernel = device.RawKernel(source, name, **settings)
        args = [device.asarray(value) if isinstance(value, np.ndarray) else value for value in values]
        kernel(grid, block, args)
        found.append(totals(kernel.report()) if settings else {})
    device.synchronize()
    return found


def totals(report: Any) -> dict[str, int]:
    result = {}
    for kind in ("load", "store"):
        counts = report.of(f"global {kind}")
        result[f"{kind} requests"] = sum(each.requests for each in counts)
        result[f"{kind} sectors"] = sum(each.sectors for each in counts)
        result[f"shared {kind} turns"] = sum(each.ways for each in report.of(f"shared {kind}"))
    return result


def measured() -> list[dict[str, int]]:
    """ncu's figures of the same launches."""
    ncu = ["ncu", "--csv", "--clock-control", "none", "--metrics", ",".join(METRICS.values())]
    kernels = "--kernel-name", "regex:copy|transpose_|rms_norm_"
    command = [*ncu, *kernels, sys.executable, __file__, "--launch"]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode or not lines:
        sys.exit(f"ncu failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    names, launches = {metric: name for name, metric in METRICS.items()}, dict[str, dict[str, int]]()
    for row in csv.DictReader(lines):
        value = int(float(row["Metric Value"].replace(",", "")))
        launches.setdefault(row["ID"], {})[names[row["Metric Name"]]] = value
    return list(launches.values())


if __name__ == "__main__":
    main()
