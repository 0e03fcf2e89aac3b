"""Copies of compiled modules: loaded for the kernels that use them, unloaded when the last of these has gone."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import DATA
from tiny_vllm import LLM, SamplingParams
from tiny_vllm.device.emulator import Emulator

CODE = """__device__ float plus(float x) { __syncthreads(); return x + 1; }
extern "C" __global__ void add(float* x) { x[blockIdx.x] = plus(x[blockIdx.x]); }"""


def copies() -> int:
    """How many pieces of this process's memory belong to a copy of a module; its file is gone."""
    if sys.platform != "linux":
        pytest.skip("the system does not list what a process maps")
    gc.collect()
    return sum("/copy-" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("check", [False, True])
def test_a_module_is_unloaded_with_its_last_kernel(check):
    before = copies()
    for _ in range(3):
        x = np.zeros(4, np.float32)
        kernel = Emulator().RawKernel(CODE, "add", check=check)
        kernel((4,), (1,), (x,))
        assert copies() > before and x.tolist() == [1] * 4
        del kernel
        assert copies() == before


def test_a_kernel_outlives_its_module():
    kernel, x = Emulator().RawModule(CODE, workers=2).get_function("add"), np.zeros(3000, np.float32)
    for _ in range(9):  # the first ones are too short for a second worker
        gc.collect()
        kernel((3000,), (1,), (x,))
    assert (x == 9).all()


def test_a_graph_outlives_its_kernels():
    device, x = Emulator(), np.zeros(4, np.float32)
    kernel = device.RawKernel(CODE, "add")
    with device.capture() as graph:
        kernel((4,), (1,), (x,))
        kernel((4,), (1,), (x,))
    del kernel
    gc.collect()
    graph.launch()
    assert x.tolist() == [2] * 4


def test_an_llm_leaves_no_copy_behind():
    """A process may map some 65,000 pieces of memory: what each LLM leaves behind ends it one day."""
    before = copies()
    for _ in range(2):
        with LLM(DATA / "tiny" / "tiny", device="emulator", dtype="float32", max_model_len=64) as llm:
            llm.generate("a", SamplingParams(0.8, max_tokens=4), use_tqdm=False)
            assert copies() > before
        del llm
        assert copies() == before
