"""isolated=True: a launch in a child process, whose death is an error and no more."""

from __future__ import annotations

import signal
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tiny_vllm.device.emulator import Emulator, RawModule
from tiny_vllm.device.emulator.isolate import merge
from tiny_vllm.errors import KernelError, LaunchError

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture(scope="module")
def faults() -> RawModule:
    return Emulator().RawModule((KERNELS / "faults.cu").read_text(), isolated=True, timeout=0.5)


def test_results_come_back(rng):
    module = Emulator().RawModule((KERNELS / "reduction.cu").read_text(), isolated=True)
    x, weight = rng.standard_normal((5, 33), np.float32), rng.standard_normal(33, np.float32)
    out = np.full((5, 33), np.nan, np.float32)
    module.get_function("rms_norm_tree")((5,), (32,), (x, weight, out, 33, 1e-5))
    np.testing.assert_allclose(out, x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * weight, rtol=1e-5)


def test_bfloat16_shared_memory_and_templates(rng):
    name = "rms_norm_any<__nv_bfloat16, 64>"
    module = Emulator().RawModule((KERNELS / "reduction.cu").read_text(), name_expressions=(name,), isolated=True)
    x, weight = (rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16) for shape in ((3, 70), (70,)))
    out = np.zeros_like(x)
    module.get_function(name)((3,), (64,), (x, weight, out, 70, 1e-5), shared_mem=256)
    wide = x.astype(np.float32)
    expected = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-5) * weight.astype(np.float32)
    np.testing.assert_allclose(out.astype(np.float32), expected, rtol=1e-2)


def test_views_and_arrays_that_overlap():
    code = """extern "C" __global__ void k(const float* q, int q_stride, float* whole, int n) {
        whole[n * q_stride + threadIdx.x] = q[n * q_stride] + threadIdx.x;
    }"""
    kernel = Emulator().RawKernel(code, "k", isolated=True)
    whole = np.arange(40, dtype=np.float32).reshape(5, 8)
    kernel((1,), (3,), (whole[:, 2:5], 8, whole, 3))
    expected = np.arange(40, dtype=np.float32).reshape(5, 8)
    expected[3, :3] = 26 + np.arange(3)
    np.testing.assert_array_equal(whole, expected)


def test_printf(capsys):
    kernel = Emulator().RawKernel(
        'extern "C" __global__ void k(int n) { printf("n is %d\\n", n); }', "k", isolated=True
    )
    kernel((1,), (1,), (7,))
    assert capsys.readouterr().out == "n is 7\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_the_childs_death_is_one_sentence(faults, number):
    kernel, out = faults.get_function("die"), np.zeros(4, np.int32)
    with pytest.raises(KernelError, match=f"^die: the process that ran it was ended by {number.name}, probably .+$"):
        kernel((1,), (4,), (out, int(number)))
    assert (out == 0).all()
    kernel((1,), (4,), (out, 0))
    assert (out == 5).all()


def test_an_endless_loop(faults):
    kernel, out = faults.get_function("spin"), np.zeros(4, np.int32)
    with pytest.raises(LaunchError, match=r"spin: the launch timed out .*CUDA_ERROR_LAUNCH_TIMEOUT.*0.5 s"):
        kernel((1,), (4,), (np.zeros(1, np.int32), out))
    kernel((1,), (4,), (np.ones(1, np.int32), out))
    assert (out == 1).all()


def test_an_access_right_behind_an_array_is_seen(faults):
    kernel, out = faults.get_function("one_past_the_end"), np.zeros(64, np.float32)
    x = np.arange(65, dtype=np.float32)
    kernel((1,), (64,), (x, out, 64))
    np.testing.assert_array_equal(out, x[1:])
    with pytest.raises(LaunchError, match="one_past_the_end: an illegal memory access"):
        kernel((1,), (64,), (x[:64].copy(), out, 64))


def test_refusals_come_before_the_child(faults):
    with pytest.raises(LaunchError, match="block x is 2048"):
        faults.get_function("die")((1,), (2048,), (np.zeros(4, np.int32), 0))
    with pytest.raises(TypeError, match="argument out"):
        faults.get_function("die")((1,), (4,), (np.zeros(4), 0))


def test_merge():
    assert merge([(30, 40), (0, 10), (10, 12), (5, 9), (35, 50)]) == [(0, 10), (10, 12), (30, 50)]
    assert merge([]) == []
