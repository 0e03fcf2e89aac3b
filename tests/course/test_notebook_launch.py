"""`launch`: copies in, outputs back by name, check mode's findings, counters."""

from __future__ import annotations

import numpy as np
import pytest

from tiny_vllm.course.notebook.launch import as_tuple, options_for, run_kernel
from tiny_vllm.device import get_device
from tiny_vllm.errors import KernelError, UserError

CODE = """\
extern "C" __global__ void scale(const float* x, float* out, int* ids, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * factor;
    if (i < n) ids[i] = i;
}
extern "C" __global__ void count(const float* x, float* total) {
    *total += x[threadIdx.x];
}
extern "C" __global__ void crash(int* out) {
    volatile int* nowhere = (int*)16;
    out[0] = *nowhere;
}
"""


@pytest.fixture(scope="module")
def emulator():
    return get_device("emulator")


@pytest.mark.parametrize("check", [False, True])
def test_outputs_come_back_by_name_and_inputs_stay(device, rng, check):
    x, out = rng.standard_normal(7, np.float32), np.full(7, np.nan, np.float32)
    run = run_kernel(device, CODE, "scale", 2, (4,), [x, out, np.zeros(7, np.int32), 7, 2.5], check=check)
    np.testing.assert_allclose(run["out"], x * np.float32(2.5), rtol=1e-6)
    assert run["ids"].tolist() == list(range(7))
    assert np.isnan(out).all() and set(run.outputs) == {"out", "ids"} and run.findings == ()
    with pytest.raises(UserError, match="the kernel has no output 'x'; it has out, ids"):
        run["x"]


def test_a_race_is_found_and_the_value_is_there_all_the_same(emulator):
    x, total = np.arange(8, dtype=np.float32), np.zeros(1, np.float32)
    assert run_kernel(emulator, CODE, "count", 1, 8, [x, total], check=False)["total"] == 28
    run = run_kernel(emulator, CODE, "count", 1, 8, [x, total])
    assert [finding.kind for finding in run.findings] == ["race"] and run.findings[0].line == 7
    assert run["total"] == 28 and total == 0


def test_counters_are_the_emulators(emulator, device):
    x = np.ones(8, np.float32)
    args = [x, np.zeros(8, np.float32), np.zeros(8, np.int32), 8, 1.0]
    report = run_kernel(emulator, CODE, "scale", 1, 8, args, count=True).report
    loads = [each for each in report.counts if each.kind == "global load"]
    assert [(each.line, each.lanes) for each in loads] == [(3, 8)]
    if device.name != "emulator":
        with pytest.raises(UserError, match="counters are the emulator's"):
            run_kernel(device, CODE, "scale", 1, 8, args, count=True)


def test_a_crash_is_an_error_and_no_more(emulator):
    with pytest.raises(KernelError):
        run_kernel(emulator, CODE, "crash", 1, 1, [np.zeros(1, np.int32)], check=False)


def test_sizes_and_element_types():
    assert (as_tuple(3), as_tuple((2, 1))) == ((3,), (2, 1))
    assert options_for([np.zeros(2, np.int32), np.zeros(2, np.float16)]) == ("-DSCALAR=__half",)
    assert options_for([1, 2.0]) == ("-DSCALAR=float",)
