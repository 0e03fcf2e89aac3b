"""The Device protocol on the emulator: arrays, GEMM, captured graphs, events, memory."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

from tiny_vllm.device.base import Device
from tiny_vllm.device.emulator import Emulator
from tiny_vllm.errors import KernelError, LaunchError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TYPES = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
ADD_ONE = 'extern "C" __global__ void add_one(float* x, int n) { for (int i = threadIdx.x; i < n; i += 32) x[i] += 1; }'


@pytest.fixture
def emulator() -> Emulator:
    return Emulator()


def typed(device: Device) -> Device:
    return device


def test_the_protocol(emulator):
    device = typed(emulator)  # mypy compares it with Device
    assert (device.name, device.default_dtype, device.compute_capability) == ("emulator", "float32", 90)
    assert device.description.startswith("emulator (") and "worker" in device.description


def test_arrays(emulator, rng):
    host = rng.standard_normal((3, 4))
    array = emulator.asarray(host.T, np.float32)
    assert array.dtype == np.float32 and array.flags.c_contiguous and array.flags.writeable
    host[:] = 0
    assert array.any()
    emulator.copy_in(array, np.arange(12).reshape(4, 3))
    copy = emulator.to_host(array)
    emulator.copy_in(array, np.zeros((4, 3)))
    assert copy[3, 2] == 11
    assert emulator.empty((2, 3), "bfloat16").dtype == BFLOAT16
    assert not emulator.zeros(5, np.int32).any()
    with pytest.raises(ValueError, match=r"shape \(3,\), the array has \(4, 3\)"):
        emulator.copy_in(array, np.zeros(3))


def product(x, weight):
    return x.astype(np.float64) @ weight.astype(np.float64).T


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 33, 70), (2, 5, 3), (17, 64, 129)])
@pytest.mark.parametrize("x_type", TYPES, ids=str)
@pytest.mark.parametrize("weight_type", TYPES, ids=str)
@pytest.mark.parametrize("out_type", TYPES, ids=str)
@pytest.mark.parametrize("add", [False, True])
def test_gemm(emulator, rng, m, n, k, x_type, weight_type, out_type, add):
    x, weight = rng.standard_normal((m, k)).astype(x_type), rng.standard_normal((n, k)).astype(weight_type)
    out = rng.standard_normal((m, n)).astype(out_type) if add else np.full((m, n), np.nan, out_type)
    expected = product(x, weight) + (out.astype(np.float64) if add else 0)
    emulator.gemm(x, weight, out, add)
    tolerance = {4: 1e-5, 2: 2e-3}[out_type.itemsize] * (8 if out_type == BFLOAT16 else 1)
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=tolerance, atol=tolerance * 3)


@pytest.mark.parametrize("m", [1, 5])
def test_gemm_with_column_views(emulator, rng, m):
    wide, weight = rng.standard_normal((m, 30)).astype(np.float32), rng.standard_normal((7, 11)).astype(np.float32)
    out = np.full((m, 20), np.nan, np.float32)
    emulator.gemm(wide[:, 4:15], weight, out[:, 3:10])
    np.testing.assert_allclose(out[:, 3:10], product(wide[:, 4:15], weight), rtol=1e-5, atol=1e-5)
    assert np.isnan(out[:, :3]).all() and np.isnan(out[:, 10:]).all()


def test_gemm_sums_in_float32(emulator):
    x, weight, out = np.full((1, 4096), 16, np.float16), np.full((1, 4096), 1, np.float16), np.zeros((1, 1), np.float32)
    emulator.gemm(x, weight, out)  # 65,536 is beyond float16
    assert out[0, 0] == 65536


def test_gemm_names_what_does_not_fit(emulator):
    x, weight, out = np.zeros((2, 3), np.float32), np.zeros((4, 5), np.float32), np.zeros((2, 4), np.float32)
    with pytest.raises(LaunchError, match=r"x \(2, 3\), weight \(4, 5\), out \(2, 4\) do not fit"):
        emulator.gemm(x, weight, out)
    with pytest.raises(TypeError, match="x is float64"):
        emulator.gemm(np.zeros((2, 5)), weight, out)


@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype(np.float16)], ids=str)
def test_a_read_only_weight_is_widened_once_and_let_go(emulator, rng, dtype):
    weight = rng.standard_normal((6, 8)).astype(dtype)
    weight.flags.writeable = False
    x, out = np.ones((1, 8), np.float32), np.empty((1, 6), np.float32)
    for _ in range(3):
        emulator.gemm(x, weight, out)
        emulator.gemm(x, weight[:3], out[:, :3])  # a view of it is another product
    np.testing.assert_allclose(out, product(x, weight), rtol=1e-5, atol=1e-5)
    assert len(emulator._gemm._wide) == 2
    del weight
    gc.collect()
    assert len(emulator._gemm._wide) == 0


def test_a_weight_that_can_be_written_is_read_each_time(emulator):
    weight, x, out = np.ones((2, 3), BFLOAT16), np.ones((1, 3), np.float32), np.empty((1, 2), np.float32)
    view = weight[:]
    view.flags.writeable = False  # the view cannot be written, the array behind it can
    emulator.gemm(x, view, out)
    assert (out == 3).all()
    weight[:] = 2
    emulator.gemm(x, view, out)
    assert (out == 6).all()


def test_capture_records_and_replays(emulator):
    kernel = emulator.RawKernel(ADD_ONE, "add_one")
    x, out = emulator.zeros((1, 40), np.float32), emulator.zeros((1, 3), np.float32)
    weight = emulator.asarray(np.ones((3, 40)), np.float32)
    start, end = emulator.event(), emulator.event()
    with emulator.capture() as graph:
        start.record()
        kernel((1,), (32,), (x, 40))
        emulator.gemm(x, weight, out)
        kernel((1,), (32,), (out, 3))
        end.record()
        with pytest.raises(LaunchError, match="not complete"):
            graph.launch()
    assert not x.any() and not out.any()
    for step in (1, 2, 3):
        graph.launch()
        assert (x == step).all() and (out == 40 * step + 1).all()
    assert end.elapsed_ms(start) > 0
    emulator.copy_in(x, np.full((1, 40), 10))
    graph.launch()
    assert (x == 11).all()


def test_a_graph_keeps_its_arrays_alive(emulator):
    kernel, x = emulator.RawKernel(ADD_ONE, "add_one"), emulator.zeros(40, np.float32)
    with emulator.capture() as graph:
        kernel((1,), (32,), (x, 40))
    address = x.ctypes.data
    del x
    gc.collect()
    others = [np.full(40, 7, np.float32) for _ in range(100)]
    assert address not in [other.ctypes.data for other in others]
    graph.launch()
    assert all((other == 7).all() for other in others)


@pytest.mark.parametrize(
    "what",
    [
        lambda d, x: d.empty(3, np.float32),
        lambda d, x: d.zeros(3, np.float32),
        lambda d, x: d.asarray([1.0]),
        lambda d, x: d.copy_in(x, np.zeros(3)),
        lambda d, x: d.to_host(x),
        lambda d, x: d.synchronize(),
        lambda d, x: d.capture().__enter__(),
    ],
)
def test_what_a_capture_refuses_ends_it(emulator, what):
    x = emulator.zeros(3, np.float32)
    with pytest.raises(LaunchError, match="not permitted when stream is capturing"), emulator.capture():
        what(emulator, x)
    emulator.synchronize()  # the capture is over
    # Swallowed inside, raised at the end.
    with pytest.raises(LaunchError, match="not permitted"), emulator.capture() as graph, pytest.raises(LaunchError):
        what(emulator, x)
    with pytest.raises(LaunchError, match="not complete"):
        graph.launch()


def test_the_first_cause_of_a_spoilt_capture_is_raised(emulator):
    with pytest.raises(LaunchError, match="empty: operation not permitted"), emulator.capture():
        try:
            emulator.empty(3, np.float32)
        except LaunchError:
            raise RuntimeError("a later one") from None
    with pytest.raises(ZeroDivisionError), emulator.capture():
        raise ZeroDivisionError
    assert emulator.empty(3, np.float32).shape == (3,)


def test_refused_launches_are_refused_in_a_capture(emulator):
    kernel, x = emulator.RawKernel(ADD_ONE, "add_one"), emulator.zeros(40, np.float32)
    with pytest.raises(LaunchError, match="block x is 2048"), emulator.capture():
        kernel((1,), (2048,), (x, 40))


def test_no_allocation(emulator):
    kernel, x = emulator.RawKernel(ADD_ONE, "add_one"), emulator.zeros(40, np.float32)
    with emulator.no_allocation():
        kernel((1,), (32,), (x, 40))
        emulator.copy_in(x, emulator.to_host(x) + 1)
        for allocate in (emulator.empty, emulator.zeros):
            with pytest.raises(KernelError, match="where none is allowed"):
                allocate(3, np.float32)
        with pytest.raises(KernelError, match="asarray"):
            emulator.asarray([1])
    assert (emulator.asarray(x) == 2).all()


def test_events_and_memory(emulator):
    start, end = emulator.event(), emulator.event()
    start.record()
    with pytest.raises(LaunchError, match="never recorded"):
        end.elapsed_ms(start)
    end.record()
    end.synchronize()
    assert end.elapsed_ms(start) >= 0
    free, total = emulator.memory_info()
    assert 0 < free <= total
    assert emulator.bandwidth() > 1e8 and emulator.bandwidth() == emulator.bandwidth()
    emulator.close()


def test_settings_that_there_are_not(emulator):
    with pytest.raises(TypeError, match="colour"):
        emulator.RawKernel(ADD_ONE, "add_one", colour="red")
    with pytest.raises(KernelError, match="order is 'sideways'; choose one of forward, reverse"):
        emulator.RawKernel(ADD_ONE, "add_one", order="sideways")
