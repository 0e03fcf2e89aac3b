"""Check mode beside the zoo: what is no fault, what a launch leaves behind, how arguments and findings travel."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest

from tiny_vllm.device.emulator import Emulator, RawKernel, RawModule
from tiny_vllm.device.emulator.check import never_written
from tiny_vllm.device.emulator.check.poison import is_poisoned, poison
from tiny_vllm.errors import DeviceError, KernelCheckError, KernelError, LaunchError, UserError

CODE = """#line 1 "cases.cu"
extern "C" __global__ void shift(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = x[i + 1];
    }
}
extern "C" __global__ void add_columns(const float* q, const float* k, float* y, int q_stride, int k_stride,
                                       int width) {
    for (int c = threadIdx.x; c < width; c += blockDim.x)
        y[blockIdx.x * width + c] = q[blockIdx.x * q_stride + c] + k[blockIdx.x * k_stride + c];
}
extern "C" __global__ void double_it(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 2.0f * x[i];
}
extern "C" __global__ void copy_to(const float* x, float* y, int n) {
    if (threadIdx.x < n) y[threadIdx.x] = x[n - 1 - threadIdx.x];
}
extern "C" __global__ void count_all(const int* x, int* total) {
    atomicAdd(total, x[blockIdx.x * blockDim.x + threadIdx.x]);
}
extern "C" __global__ void last_block_sums(const float* x, float* partial, int* done, float* y) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = x[blockIdx.x];
        __threadfence();
        last = atomicAdd(done, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float sum = 0.0f;
        for (int i = 0; i < gridDim.x; i++) sum += partial[i];
        y[0] = sum;
    }
}
extern "C" __global__ void half_warps(const float* x, float* y) {
    __shared__ float s[32];
    unsigned mask = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp(mask);
    y[threadIdx.x] = s[threadIdx.x ^ 1];
}
extern "C" __global__ void wrong_half_warps(const float* x, float* y) {
    __shared__ float s[32];
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp(threadIdx.x < 16 ? 0xffffu : 0xffff0000u);
    y[threadIdx.x] = s[threadIdx.x ^ 16];
}
__device__ int counter;
extern "C" __global__ void unprotected(int* y) {
    counter += 1;
    y[threadIdx.x] = threadIdx.x;
}
extern "C" __global__ void order_of(int* y) {
    __shared__ int next;
    if (threadIdx.x == 0) next = 0;
    __syncthreads();
    y[threadIdx.x] = atomicAdd(&next, 1);
}
extern "C" __global__ void trap(int* y) { __trap(); }
"""
SHIFT = (
    "cases.cu:4: out of bounds: thread 31 of block 1 reads x[64]; it has 64 elements, 0 to 63; correct the index, or "
    "let threads without an element do nothing"
)


def floats(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.fixture(scope="module")
def module() -> RawModule:
    return RawModule(CODE, check=True)


def findings(kernel, *launch) -> list:
    with pytest.raises(KernelCheckError) as caught:
        kernel(*launch)
    return caught.value.findings


def test_the_message_and_the_launch_goes_on(module):
    x, y = floats(64), np.full(64, -1, np.float32)
    with pytest.raises(KernelCheckError) as caught:
        module.get_function("shift")((2,), (32,), (x, y, 64))
    assert str(caught.value) == f"shift: check mode has 1 finding\n{SHIFT}"
    np.testing.assert_array_equal(y[:63], x[1:])
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and again.findings == caught.value.findings


def test_a_checked_launch_gives_the_same_numbers(module):
    x, y = floats(65), np.zeros(64, np.float32)
    module.get_function("shift")((2,), (32,), (x, y, 64))
    np.testing.assert_array_equal(y, x[1:])


def test_columns_of_one_array(module):
    """Views that overlap in memory, with a row stride; neither may leave its own columns."""
    qkv, y = floats(5, 24), np.zeros((5, 8), np.float32)
    q, k = qkv[:, :8], qkv[:, 8:16]
    kernel = module.get_function("add_columns")
    kernel((5,), (4,), (q, k, y, 24, 24, 8))
    np.testing.assert_array_equal(y, q + k)
    [found] = findings(kernel, (2,), (4,), (k, qkv[:, 16:], np.zeros((2, 9), np.float32), 24, 24, 9))
    assert (found.argument, found.thread, found.block) == ("k", (0, 0, 0), (0, 0, 0))
    assert "column 8 of row 0; its shape is (5, 8)" in found.message


def test_one_array_twice_and_in_place(module):
    x = floats(32)
    assert findings(module.get_function("copy_to"), (1,), (32,), (x, x, 32))[0].kind == "race"
    module.get_function("double_it")((1,), (40,), (x := floats(32), 32))
    np.testing.assert_array_equal(x, 2 * floats(32))


def test_an_empty_array_and_a_const_one(module):
    [found] = findings(module.get_function("double_it"), (1,), (1,), (np.zeros(0, np.float32), 1))
    assert "has no elements" in found.message
    x = floats(33)
    x.flags.writeable = False
    module.get_function("shift")((1,), (32,), (x, np.zeros(32, np.float32), 32))


def test_what_is_no_race(module):
    total = np.zeros(1, np.int32)
    module.get_function("count_all")((3,), (64,), (np.arange(192, dtype=np.int32), total))
    assert total[0] == 191 * 96
    y = np.zeros(1, np.float32)
    module.get_function("last_block_sums")((5,), (32,), (floats(5), np.zeros(5, np.float32), np.zeros(1, np.int32), y))
    assert y[0] == 10
    module.get_function("half_warps")((1,), (32,), (floats(32), np.zeros(32, np.float32)))


def test_lanes_of_another_mask_are_not_in_order(module):
    found = findings(module.get_function("wrong_half_warps"), (1,), (32,), (floats(32), np.zeros(32, np.float32)))
    assert {(each.kind, each.argument) for each in found} == {("race", "s")}


def test_a_device_variable(module):
    [found] = findings(module.get_function("unprotected"), (1,), (32,), (np.zeros(32, np.int32),))
    assert (found.kind, found.argument, found.thread, found.other_thread) == ("race", "counter", (1, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("check", [False, True])
def test_the_order_of_threads(check):
    y = np.zeros(70, np.int32)
    for order, expected in (("forward", np.arange(70)), ("reverse", np.arange(70)[::-1])):
        RawKernel(CODE, "order_of", check=check, order=order)((1,), (70,), (y,))
        np.testing.assert_array_equal(y, expected)


def test_memory_from_empty():
    device = Emulator()
    module = device.RawModule(CODE, check=True)
    x, y = device.empty(65, np.float32), device.empty((8, 8), np.float32)
    assert never_written(x).all()
    x[:60] = 1.0
    [found] = findings(module.get_function("shift"), (2,), (32,), (x, y, 64))
    assert (found.kind, found.argument, found.index, found.count) == ("uninitialised", "x", 60, 5)
    y = device.empty((8, 8), np.float32)
    module.get_function("shift")((1,), (32,), (x, y, 20))
    assert never_written(y).sum() == 44 and not never_written(y).reshape(-1)[:20].any()
    module.get_function("shift")((2,), (32,), (floats(65), y, 64))  # a later launch writes the rest
    assert not never_written(y).any()
    plain = np.empty(65, np.float32)
    plain.view(np.uint16)[:] = 0x7FA5  # the very pattern, in an array that is not from empty
    module.get_function("shift")((2,), (32,), (plain, y, 64))


def test_a_capture_checks_when_it_runs():
    device = Emulator()
    kernel, x, y = device.RawKernel(CODE, "shift", check=True), floats(64), np.zeros(64, np.float32)
    with device.capture() as graph:
        kernel((2,), (32,), (x, y, 64))
    with pytest.raises(KernelCheckError, match=r"x\[64\]"):
        graph.launch()


def test_isolated():
    kernel, y = RawKernel(CODE, "shift", check=True, isolated=True), np.zeros(64, np.float32)
    [found] = findings(kernel, (2,), (32,), (floats(64), y, 64))
    assert str(found) == SHIFT
    np.testing.assert_array_equal(y[:63], floats(64)[1:])
    with pytest.raises(KernelError, match="leave isolated out"):
        RawKernel(CODE, "shift", check=True, isolated=True, count=True)


def test_a_trap_is_still_a_trap(module):
    with pytest.raises(LaunchError, match="__trap"):
        module.get_function("trap")((1,), (1,), (np.zeros(1, np.int32),))


def test_the_environment_checks_every_kernel(monkeypatch):
    monkeypatch.setenv("TINY_VLLM_CHECK", "1")
    with pytest.raises(KernelCheckError):
        RawKernel(CODE, "shift")((2,), (32,), (floats(64), floats(64), 64))
    RawKernel(CODE, "shift", check=False)((1,), (32,), (floats(64), floats(64), 32))
    monkeypatch.setenv("TINY_VLLM_CHECK", "yes")
    with pytest.raises(UserError, match="TINY_VLLM_CHECK is 'yes'"):
        RawKernel(CODE, "shift")
    monkeypatch.setenv("TINY_VLLM_CHECK", "0")
    monkeypatch.setenv("TINY_VLLM_THREAD_ORDER", "up")
    with pytest.raises(UserError, match="TINY_VLLM_THREAD_ORDER is 'up'"):
        RawKernel(CODE, "shift")


def test_gaps_are_no_shared_memory_of_the_kernel():
    """48 KiB are allowed, with check mode's gaps between the arrays too."""
    code = """
    extern "C" __global__ void full(float* x) { __shared__ float a[4096], b[8192]; a[0] = b[1] = 2; x[0] = a[0]; }
    extern "C" __global__ void other(float* x) { __shared__ float c[64]; c[0] = 3; x[0] = c[0]; }
    """
    for kernel in (
        RawKernel(code.split("\n")[1], "full", check=True),
        RawModule(code, check=True).get_function("full"),
    ):
        assert kernel.shared_size_bytes == 48 * 1024
        kernel((1,), (1,), (np.zeros(1, np.float32),))
    assert RawModule(code, check=True).get_function("other").shared_size_bytes == 256


def test_print_and_assert_are_the_machine_s(capsys):
    code = 'extern "C" __global__ void k(int* x) { printf("%d of %d\\n", threadIdx.x, x[0]); assert(x[0] < 5); }'
    kernel = RawKernel(code, "k", check=True)
    kernel((1,), (2,), (np.array([4], np.int32),))
    assert capsys.readouterr().out == "0 of 4\n1 of 4\n"
    with pytest.raises(LaunchError, match="assertion"):
        kernel((1,), (2,), (np.array([5], np.int32),))


def test_shared_memory_is_unwritten_again_after_a_larger_array():
    """A larger array brings a larger arena, whose launches are counted anew."""
    code = """
    extern "C" __global__ void k(float* y, int write) {
        __shared__ float s[32];
        if (write) s[threadIdx.x] = 1.0f;
        __syncthreads();
        y[threadIdx.x] = s[threadIdx.x];
    }
    """
    kernel = RawKernel(code, "k", check=True)
    for _ in range(3):
        kernel((1,), (32,), (np.zeros(32, np.float32), 1))
    with pytest.raises(KernelCheckError, match="which no thread of its block has written"):
        kernel((1,), (32,), (np.zeros(8 << 20, np.float32), 0))


def test_arrays_may_end_while_poisoned_memory_is_looked_through():
    """Python frees what hangs in circles at any moment."""
    arrays = [poison(np.empty(4, np.float32)) for _ in range(9)]

    class Place(int):
        def __lt__(self, other: int) -> bool:
            arrays.clear()
            return int(self) < other

    assert not is_poisoned(Place(0), 1)
    assert not arrays


def test_without_binutils(monkeypatch):
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **at: None if name == "addr2line" else which(name, **at))
    with pytest.raises(DeviceError, match="addr2line, which this machine lacks; install binutils"):
        RawKernel(CODE, "shift", check=True)
