"""Programmatic dependent launch: the order that two kernels keep by the functions of kernels/ptx.cuh."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiny_vllm.device.source import default_overlay, load_source
from tiny_vllm.errors import LaunchError

# A chain of sums: each launch lets the next one begin at once, takes its time, and adds to what the last one left.
CODE = """
#include "ptx.cuh"
extern "C" __global__ void add(float* sum, float* log, int place, float value, int turns) {
    launch_next_kernel();
    float x = value;
    for (int i = 0; i < turns; i++) x = x * 0.5f + value * 0.5f;  // still value
    wait_for_previous_kernel();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    sum[i] = sum[i] * 2.0f + x;
    log[place * gridDim.x * blockDim.x + i] = sum[i];
}
"""
BLOCKS, THREADS, LAUNCHES = 300, 64, 12


@pytest.fixture(scope="module")
def add(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if device.compute_capability < 80:
        pytest.skip("ptx.cuh needs sm_80")
    file = tmp_path_factory.mktemp("kernels") / "add.cu"
    file.write_text(CODE)
    return device.RawModule(load_source("add.cu", [file.parent, *default_overlay()])).get_function("add")


def chain(device: Any, add: Any) -> tuple[Any, Any]:
    """(sum, log) and the launches on them, as one call."""
    count = BLOCKS * THREADS
    total, log = device.zeros((count,), np.float32), device.asarray(np.full((LAUNCHES, count), np.nan, np.float32))

    def run() -> None:
        for place in range(LAUNCHES):
            turns = 2000 if device.name == "cuda" and place % 3 == 0 else 1
            add((BLOCKS,), (THREADS,), (total, log, place, float(place), turns), programmatic=True)

    return (total, log), run


def expected() -> np.ndarray:
    sums, total = [], 0.0
    for place in range(LAUNCHES):
        total = 2 * total + place
        sums.append(total)
    return np.array(sums, np.float32)


def test_a_chain_is_in_order(device, add):
    (_, log), run = chain(device, add)
    run()
    np.testing.assert_array_equal(device.to_host(log), np.broadcast_to(expected()[:, None], log.shape))


def test_a_captured_chain_is_in_order(device, add):
    (total, log), run = chain(device, add)
    with device.capture() as graph:
        run()
    for _ in range(3):
        device.copy_in(total, np.zeros(total.shape, np.float32))
        device.copy_in(log, np.full(log.shape, np.nan, np.float32))
        graph.launch()
        np.testing.assert_array_equal(device.to_host(log), np.broadcast_to(expected()[:, None], log.shape))


def test_arguments_and_sizes_are_checked_alike(device, add):
    total = device.zeros((64,), np.float32)
    with pytest.raises(TypeError, match=r"add: argument log \(float\* log\): got None"):
        add((1,), (64,), (total, None, 0, 1.0, 1), programmatic=True)
    with pytest.raises(LaunchError, match="add: CUDA_ERROR_INVALID_VALUE"):
        add((1,), (2048,), (total, total, 0, 1.0, 1), programmatic=True)
