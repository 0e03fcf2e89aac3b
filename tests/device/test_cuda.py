"""What only a GPU does; runs with --device cuda."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

from tiny_vllm.errors import KernelError, LaunchError, UserError

COPY = """extern "C" __global__ void copy(const float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i];
}"""


@pytest.fixture(autouse=True)
def only_cuda(request: pytest.FixtureRequest):
    if request.config.getoption("--device") != "cuda":
        pytest.skip("needs --device cuda")


def used_bytes() -> int:
    """Of the whole card, whoever uses it: a test that counts them has it to itself."""
    import cupy

    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("other workers use the card's memory, too; run this file without -n")

    cupy.cuda.Device().synchronize()
    free, total = cupy.cuda.runtime.memGetInfo()
    return total - free


def test_close_gives_memory_back(device):
    device.close()
    before = used_bytes()
    arrays = [device.zeros(64 << 20, np.uint8) for _ in range(4)]
    arrays.append(arrays)  # a cycle, as a dropped engine may leave
    assert used_bytes() >= before + (256 << 20)
    del arrays
    device.close()
    assert used_bytes() <= before + (2 << 20)


def test_memory_is_flat_after_failed_captures(device):
    kernel, x = device.RawKernel(COPY, "copy"), device.zeros(1 << 20, np.float32)
    y = device.zeros(1 << 20, np.float32)
    kernel((64,), (256,), (x, y, x.size))
    for _ in range(3):
        with pytest.raises(KernelError, match=r"allocation"), device.capture():
            kernel((64,), (256,), (x, y, x.size))
            device.zeros(1 << 24, np.float32)
    device.close()
    before = used_bytes()
    for _ in range(100):
        kernel((64,), (256,), (x, y, x.size))
        kernel((64,), (256,), (device.asarray(np.ones(1 << 18, np.float32)), y, 1 << 18))
    device.close()
    assert used_bytes() <= before + (2 << 20)


@pytest.mark.parametrize("fault", ["launch", "argument", "own", "synchronize", "copy"])
def test_whatever_fails_in_a_capture_is_the_first_cause(device, fault):
    kernel, x, y = device.RawKernel(COPY, "copy"), device.zeros(8, np.float32), device.zeros(8, np.float32)
    expected = {"launch": LaunchError, "argument": TypeError, "own": ZeroDivisionError, "synchronize": LaunchError,
                "copy": RuntimeError}[fault]  # fmt: skip
    with pytest.raises(expected), device.capture():
        kernel((1,), (8,), (x, y, 8))
        if fault == "launch":
            kernel((1,), (2048,), (x, y, 8))
        elif fault == "argument":
            kernel((1,), (8,), (x, y, 8.0))
        elif fault == "own":
            _ = 1 / 0
        elif fault == "synchronize":
            device.synchronize()
        else:
            device.copy_in(x, np.ones(8))
    assert not device.stream.is_capturing()
    device.copy_in(x, np.arange(8))
    with device.capture() as graph:
        kernel((1,), (8,), (x, y, 8))
    graph.launch()
    assert device.to_host(y).tolist() == list(range(8))


def test_a_graph_keeps_its_arrays(device):
    kernel, y = device.RawKernel(COPY, "copy"), device.zeros(1 << 20, np.float32)
    x = device.asarray(np.full(1 << 20, 3.0, np.float32))
    with device.capture() as graph:
        kernel((64,), (256,), (x, y, 1 << 20))
    del x
    gc.collect()
    spoilers = [device.zeros(1 << 20, np.float32) for _ in range(8)]
    graph.launch()
    assert (device.to_host(y) == 3.0).all() and len(spoilers) == 8


def test_a_numpy_array_is_refused(device):
    y = device.zeros(8, np.float32)
    with pytest.raises(TypeError, match=r"argument x .*a NumPy array in host memory"):
        device.RawKernel(COPY, "copy")((1,), (8,), (np.zeros(8, np.float32), y, 8))
    with pytest.raises(TypeError, match=r"argument x .*a NumPy array in host memory"):
        device.RawKernel(COPY, "copy")((1,), (8,), (np.zeros(1, np.float32), y, 8))


def test_a_launch_error_is_in_cudas_words(device):
    x, y = device.zeros(8, np.float32), device.zeros(8, np.float32)
    with pytest.raises(LaunchError, match=r"copy: CUDA_ERROR_INVALID_VALUE.*grid \(1,\), block \(1025,\)"):
        device.RawKernel(COPY, "copy")((1,), (1025,), (x, y, 8))


def test_an_event_that_was_never_recorded(device):
    with pytest.raises(LaunchError, match=r"cudaError\w+"):
        device.event().elapsed_ms(device.event())


def test_another_threads_work_is_in_order(device):
    """Its current stream is the default one; ours waits for it."""
    import cupy

    found = []
    kernel, y = device.RawKernel(COPY, "copy"), device.zeros(1 << 22, np.float32)

    def work() -> None:
        x = cupy.zeros(1 << 22, np.float32)
        for _ in range(50):
            x += 1
        kernel((256,), (256,), (x, y, x.size))
        found.append(device.to_host(y))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (found[0] == 50).all()


def test_cupy_uses_our_stream(device):
    import cupy

    assert cupy.cuda.get_current_stream() == device.stream


def test_products_are_float32_and_not_tf32(device, rng):
    """TF32 keeps 10 bits: 1 + 2^-12 would be 1."""
    x = np.full((16, 64), 1 + 2.0**-12, np.float32)
    out = device.zeros((16, 16), np.float32)
    device.gemm(device.asarray(x), device.asarray(np.eye(16, 64, dtype=np.float32)), out)
    assert (device.to_host(out) == np.float32(1 + 2.0**-12)).all()


def test_gemm_refuses_what_does_not_fit(device):
    f32, f16 = device.zeros((4, 8), np.float32), device.zeros((4, 8), np.float16)
    out = device.zeros((4, 4), np.float32)
    for x, weight, into, message in [
        (f32, f16, out, "wanted one type"),
        (f16, f16, device.zeros((4, 4), np.int32), "float matrix"),
        (f32.T, f32, device.zeros((8, 4), np.float32), "rows of x are not contiguous"),
        (f32[0], f32, out, "float matrix of two axes"),
    ]:
        with pytest.raises(TypeError, match=message):
            device.gemm(x, weight, into)


def test_check_mode_is_the_emulators(device):
    with pytest.raises(UserError, match=r"check=True"):
        device.RawKernel(COPY, "copy", check=True)


def test_kernels_of_templates_and_grid_sync(device):
    code = "template <typename T> __global__ void twice(T* x) { x[threadIdx.x] += x[threadIdx.x]; }"
    module = device.RawModule(code, name_expressions=["twice<float>", "twice<int>"])
    for name, dtype in (("twice<float>", np.float32), ("twice<int>", np.int32)):
        x = device.asarray([1, 2, 3], dtype)
        module.get_function(name)((1,), (3,), (x,))
        assert device.to_host(x).tolist() == [2, 4, 6]


def test_a_full_gpu_is_one_sentence(device):
    with pytest.raises(UserError, match=r"GPU memory is full"):
        device.empty(1 << 45, np.uint8)


def test_the_copy_bandwidth_is_plausible(device):
    assert 1e11 < device.bandwidth() < 2e13
