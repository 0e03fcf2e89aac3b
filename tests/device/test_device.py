"""What holds on both devices: arrays, checked launches, gemm, graphs, events."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tiny_vllm.errors import CompileError, KernelError, LaunchError

BF16 = ml_dtypes.bfloat16

CODE = """
extern "C" __global__ void scale(const float* x, float* y, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * factor;
}
extern "C" __global__ void second_column(const float* q, float* y, int rows, int q_stride) {
    if (threadIdx.x < rows) y[threadIdx.x] = q[threadIdx.x * q_stride + 1];
}
extern "C" __global__ void widths(unsigned* out, unsigned a, long long b, float c, double d, bool e, unsigned f) {
    out[0] = a;
    out[1] = (unsigned)(b >> 32);
    out[2] = (unsigned)(c * 1000.0f);
    out[3] = (unsigned)(d * 1000.0);
    out[4] = e;
    out[5] = f;
}
"""


def filled(device, shape, dtype=np.float32):
    """An array of NaN: whatever a kernel does not write shows."""
    return device.asarray(np.full(shape, np.nan), dtype)


# ---- arrays


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16, np.int32, np.uint8])
def test_arrays_come_back_as_they_went(device, rng, dtype):
    host = rng.integers(0, 100, (3, 5)).astype(dtype)
    array = device.asarray(host)
    assert array.dtype == dtype and array.shape == (3, 5)
    back = device.to_host(array)
    assert type(back) is np.ndarray
    np.testing.assert_array_equal(back, host)
    np.testing.assert_array_equal(device.to_host(array[1:, 2:4]), host[1:, 2:4])
    assert not device.to_host(device.zeros((2, 3), dtype)).any()
    assert device.empty(7, dtype).shape == (7,)


def test_dtypes_by_name_and_conversion(device):
    assert device.zeros(3, "bfloat16").dtype == BF16
    assert device.asarray([1, 2, 3], "float32").dtype == np.float32
    assert device.to_host(device.asarray([1.0, 2.5], BF16)).tolist() == [1.0, 2.5]


def test_copy_in_writes_what_is_there(device):
    target = device.zeros((4, 3), np.int32)
    host = np.arange(6).reshape(2, 3)
    with device.no_allocation():
        device.copy_in(target[1:3], host)
    host[:] = -1  # the host's array is free again
    assert device.to_host(target).tolist() == [[0, 0, 0], [0, 1, 2], [3, 4, 5], [0, 0, 0]]


def test_a_host_copy_does_not_change_with_the_device(device):
    array = device.zeros(3, np.int32)
    before = device.to_host(array)
    device.copy_in(array, np.ones(3, np.int32))
    assert before.tolist() == [0, 0, 0]


def test_no_allocation_refuses_and_ends(device):
    with pytest.raises(RuntimeError, match=r"(?i)alloc"), device.no_allocation():
        device.empty(1000, np.float32)
    assert device.empty(1000, np.float32).shape == (1000,)


# ---- kernels


@pytest.mark.parametrize("n", [1, 31, 128, 1000])
def test_a_kernel(device, rng, n):
    x = rng.normal(size=n).astype(np.float32)
    y = filled(device, n + 1)
    device.RawKernel(CODE, "scale")((-(-n // 128),), (128,), (device.asarray(x), y, n, 0.1))
    expected = np.append(x * np.float32(0.1), np.float32(np.nan))
    np.testing.assert_array_equal(device.to_host(y), expected)


def test_scalars_arrive_in_the_declared_width(device):
    """A Python float for a `float`, and small types between wide ones: raw CuPy passes 8 bytes each."""
    out = device.zeros(6, np.uint32)
    device.RawKernel(CODE, "widths")((1,), (1,), (out, 7, 5 << 32, 0.25, 0.125, True, 2**32 - 1))
    assert device.to_host(out).tolist() == [7, 5, 250, 125, 1, 2**32 - 1]


def test_a_column_view_with_its_stride(device, rng):
    x = rng.normal(size=(5, 8)).astype(np.float32)
    kernel = device.RawModule(CODE).get_function("second_column")
    view, y = device.asarray(x)[:, 2:5], filled(device, 5)
    kernel((1,), (32,), (view, y, 5, 8))
    np.testing.assert_array_equal(device.to_host(y), x[:, 3])
    with pytest.raises(TypeError, match=r"argument q .*rows are 8 elements apart, but q_stride is 3"):
        kernel((1,), (32,), (view, y, 5, 3))
    with pytest.raises(TypeError, match=r"argument y .*non-contiguous"):
        kernel((1,), (32,), (view, filled(device, (5, 2))[:, 0], 5, 8))


def test_wrong_arguments_name_the_argument(device):
    kernel = device.RawKernel(CODE, "scale")
    x, y = device.zeros(4, np.float32), device.zeros(4, np.float32)
    for args, message in [
        ((device.zeros(4, np.float64), y, 4, 1.0), "scale: argument x .*float64, wanted float32"),
        ((x, y, 4.0, 1.0), "argument n .*got float 4.0, wanted an int"),
        ((x, y, 2**40, 1.0), "argument n .*wanted -2147483648 to 2147483647"),
        ((x, y, 4, "1"), "argument factor"),
        (([1.0], y, 4, 1.0), "argument x .*got list"),
        ((x, y, 4), "got 3 arguments, wants 4"),
    ]:
        with pytest.raises(TypeError, match=message):
            kernel((1,), (4,), args)


@pytest.mark.parametrize(
    ("grid", "block"),
    [((1,), (1025,)), ((1,), (32, 33)), ((1,), (1, 1, 65)), ((1, 65536), (1,)), ((1, 1, 65536), (1,)), ((0,), (1,)),
     ((1,), (0,)), ((2**31,), (1,))],
)  # fmt: skip
def test_a_launch_that_cuda_refuses(device, grid, block):
    kernel = device.RawKernel(CODE, "scale")
    x, y = device.zeros(4, np.float32), filled(device, 4)
    with pytest.raises(LaunchError, match=r"(?i)scale.*invalid"):
        kernel(grid, block, (x, y, 4, 1.0))
    kernel((1,), (4,), (x, y, 4, 1.0))  # nothing is broken by it
    assert device.to_host(y).tolist() == [0.0] * 4


def test_dynamic_shared_memory(device):
    code = """extern "C" __global__ void reverse(const float* x, float* y, int n) {
        extern __shared__ float tile[];
        for (int i = threadIdx.x; i < n; i += blockDim.x) tile[n - 1 - i] = x[i];
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = tile[i];
    }"""
    n = 15_000  # 60 kB, over the 48 KiB that need no asking
    kernel, y = device.RawKernel(code, "reverse"), filled(device, n)
    x = np.arange(n, dtype=np.float32)
    with pytest.raises(LaunchError):
        kernel((1,), (256,), (device.asarray(x), y, n), shared_mem=4 * n)
    kernel.max_dynamic_shared_size_bytes = 4 * n
    kernel((1,), (256,), (device.asarray(x), y, n), shared_mem=4 * n)
    np.testing.assert_array_equal(device.to_host(y), x[::-1])
    with pytest.raises(LaunchError):
        kernel.max_dynamic_shared_size_bytes = 1 << 20


def test_a_kernel_that_does_not_compile(device):
    code = '#line 1 "work/mine.cu"\nextern "C" __global__ void k(float* x) {\n    x[0] = foo;\n}\n'
    with pytest.raises(CompileError, match=r"work/mine\.cu.2\b[\s\S]*foo"):
        device.RawKernel(code, "k")((1,), (1,), (device.zeros(1, np.float32),))


def test_a_kernel_that_is_not_there(device):
    with pytest.raises(KernelError, match=r"no kernel scales .*scale, second_column, widths"):
        device.RawKernel(CODE, "scales")
    with pytest.raises(KernelError, match=r"no kernel scales"):
        device.RawModule(CODE).get_function("scales")


# ---- gemm


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 96, 64), (3, 5, 7), (33, 17, 130)])
def test_gemm(device, rng, dtype, m, n, k):
    x, weight = rng.normal(size=(m, k)).astype(dtype), rng.normal(size=(n, k)).astype(dtype)
    residual = rng.normal(size=(m, n)).astype(dtype)
    wide = [a.astype(np.float64) for a in (x, weight, residual)]
    expected = wide[0] @ wide[1].T
    eps = float(ml_dtypes.finfo(dtype).eps)
    scale = np.abs(wide[0]) @ np.abs(wide[1]).T + np.abs(wide[2])
    out = filled(device, (m, n), dtype)
    device.gemm(device.asarray(x), device.asarray(weight), out)
    assert np.all(np.abs(device.to_host(out) - expected) <= 2 * eps * scale)
    device.copy_in(out, residual)
    device.gemm(device.asarray(x), device.asarray(weight), out, add=True)
    assert np.all(np.abs(device.to_host(out) - (expected + wide[2])) <= 2 * eps * scale)
    logits = filled(device, (m, n))
    device.gemm(device.asarray(x), device.asarray(weight), logits)
    assert np.all(np.abs(device.to_host(logits) - expected) <= 1e-6 * scale)  # neither TF32 nor a 16-bit sum


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_gemm_of_column_views(device, rng, dtype):
    x, weight = rng.normal(size=(6, 40)).astype(dtype), rng.normal(size=(5, 24)).astype(dtype)
    out = filled(device, (6, 11), dtype)
    device.gemm(device.asarray(x)[:, 8:32], device.asarray(weight), out[:, 3:8])
    found = device.to_host(out).astype(np.float32)
    expected = x[:, 8:32].astype(np.float64) @ weight.astype(np.float64).T
    np.testing.assert_allclose(found[:, 3:8], expected, rtol=0.02 if dtype is BF16 else 1e-5, atol=0.05)
    assert np.isnan(found[:, :3]).all() and np.isnan(found[:, 8:]).all()


def test_gemm_of_no_rows(device):
    out = device.zeros((0, 4), np.float32)
    device.gemm(device.zeros((0, 8), np.float32), device.zeros((4, 8), np.float32), out)
    assert device.to_host(out).shape == (0, 4)


# ---- the stream


def test_a_graph_runs_again_with_other_inputs(device, rng):
    """Three kernels and a product in one graph: it reads what its inputs hold when it is launched."""
    kernel = device.RawKernel(CODE, "scale")
    x, y, z, last = (device.zeros((4, 8), np.float32) for _ in range(4))
    weight = rng.normal(size=(8, 8)).astype(np.float32)
    w = device.asarray(weight)
    kernel((1,), (32,), (x, y, 32, 1.0))  # warm
    with device.capture() as graph:
        kernel((1,), (32,), (x, y, 32, 2.0))
        device.gemm(y, w, z)
        kernel((1,), (32,), (z, last, 32, 3.0))
        kernel((1,), (32,), (last, y, 32, -1.0))
    for _ in range(3):
        values = rng.normal(size=(4, 8)).astype(np.float32)
        device.copy_in(x, values)
        device.copy_in(last, np.full((4, 8), np.nan))
        graph.launch()
        np.testing.assert_allclose(device.to_host(last), 6 * (values @ weight.T), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(device.to_host(y), -device.to_host(last))


def test_a_capture_records_and_does_not_run(device):
    kernel = device.RawKernel(CODE, "scale")
    x, y = device.asarray(np.ones(4, np.float32)), device.zeros(4, np.float32)
    with device.capture() as graph:
        kernel((1,), (4,), (x, y, 4, 2.0))
    assert device.to_host(y).tolist() == [0.0] * 4
    graph.launch()
    assert device.to_host(y).tolist() == [2.0] * 4


def test_an_allocation_in_a_capture_is_the_first_cause(device):
    kernel = device.RawKernel(CODE, "scale")
    x, y = device.asarray(np.ones(4, np.float32)), device.zeros(4, np.float32)
    with pytest.raises(RuntimeError, match=r"(?i)alloc|capturing"), device.capture():
        kernel((1,), (4,), (x, y, 4, 2.0))
        device.empty(1 << 20, np.float32)
    kernel((1,), (4,), (x, y, 4, 5.0))  # the stream is no longer capturing
    assert device.to_host(y).tolist() == [5.0] * 4
    with device.capture() as graph:
        kernel((1,), (4,), (x, y, 4, 7.0))
    graph.launch()
    assert device.to_host(y).tolist() == [7.0] * 4


def test_a_graph_is_launched_after_its_capture(device):
    with pytest.raises(LaunchError, match="not complete"), device.capture() as graph:
        graph.launch()
    with device.capture() as graph:
        pass
    graph.launch()  # an empty one does nothing


def test_gemm_of_shapes_that_do_not_fit(device):
    x, weight = device.zeros((4, 8), np.float32), device.zeros((5, 8), np.float32)
    for w, shape in ((device.zeros((5, 9), np.float32), (4, 5)), (weight, (5, 4)), (weight, (4, 6)), (weight, (5, 5))):
        with pytest.raises(LaunchError, match=r"gemm: x \(4, 8\), weight .*out"):
            device.gemm(x, w, device.zeros(shape, np.float32))


def test_events(device):
    start, end = device.event(), device.event()
    kernel, x = device.RawKernel(CODE, "scale"), device.zeros(1024, np.float32)
    start.record()
    for _ in range(3):
        kernel((1,), (1024,), (x, x, 1024, 1.0))
    end.record()
    end.synchronize()
    assert end.elapsed_ms(start) > 0


def test_what_is_fetched_is_what_was_there(device):
    """A fetch is a moment of the stream: what is launched after it does not change it."""
    kernel, x = device.RawKernel(CODE, "scale"), device.asarray(np.arange(1024, dtype=np.float32))
    fetched = device.fetch(x[3:7])
    kernel((1,), (1024,), (x, x, 1024, 2.0))
    after = device.fetch(x[3:7])
    x.fill(-1)
    assert fetched.wait().tolist() == [3, 4, 5, 6] and after.wait().tolist() == [6, 8, 10, 12]
    assert fetched.wait().tolist() == [3, 4, 5, 6]
    assert device.fetch(device.asarray(np.array([[7, 8]], np.int32))).wait().tolist() == [[7, 8]]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.float32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 3, 257, 2048, 2049, 5000])
def test_any_number_of_any_type_is_fetched(device, dtype, count):
    """Few words come by a kernel on a GPU, everything else by the driver's copy."""
    values = np.arange(count + 1).astype(dtype)
    fetched = device.fetch(device.asarray(values)[1:]).wait()
    assert fetched.dtype == dtype
    np.testing.assert_array_equal(fetched, values[1:])


def test_what_a_device_says_of_itself(device):
    free, total = device.memory_info()
    assert 0 < free <= total
    assert 75 <= device.compute_capability < 200
    assert device.default_dtype in ("float32", "float16", "bfloat16")
    assert device.description
    assert device.bandwidth() > 1e8 and device.bandwidth() == device.bandwidth()


def test_close_leaves_the_device_usable(device):
    device.close()
    assert device.to_host(device.asarray([1.0, 2.0], np.float32)).tolist() == [1.0, 2.0]
