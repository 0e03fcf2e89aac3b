"""Counters against numbers worked out by hand: 32 lanes, sectors of 32 bytes, 32 banks of 4 bytes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tiny_vllm.device.emulator import RawKernel, RawModule
from tiny_vllm.device.emulator.check import Count, Report, plot
from tiny_vllm.device.source import load_source
from tiny_vllm.errors import KernelError

CODE = """#line 1 "counted.cu"
extern "C" __global__ void copy(const float* x, float* y, int n, int stride) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i * stride % n];
}
extern "C" __global__ void copy_vector(const float* x, float* y) {
    reinterpret_cast<float4*>(y)[threadIdx.x] = reinterpret_cast<const float4*>(x)[threadIdx.x];
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
extern "C" __global__ void half_the_lanes(const float* x, float* y) {
    if (threadIdx.x % 2 == 0) {
        y[threadIdx.x] = x[0];
    }
}
"""


def floats(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)


@cache
def module() -> RawModule:
    return RawModule(CODE, check=True, count=True)


def report(name: str, grid, block, *args) -> Report:
    kernel = module().get_function(name)
    kernel(grid, block, args)
    return kernel.report()


def only(report: Report, kind: str, line: int | None = None) -> Count:
    [count] = report.of(kind, line)
    return count


@pytest.mark.parametrize("stride, sectors", [(1, 4), (2, 8), (8, 32), (32, 32)])
def test_a_strided_copy(stride, sectors):
    """32 lanes of 4 bytes, `stride` elements apart: 128 * stride bytes, at most a sector a lane."""
    found = report("copy", (4,), (256,), floats(8192), floats(1024), 8192, stride)
    load, store = only(found, "global load"), only(found, "global store")
    assert (load.line, load.requests, load.lanes) == (3, 32, 1024)
    assert load.sectors_a_request == sectors and load.ideal_sectors == 4
    assert store.sectors_a_request == store.ideal_sectors == 4


def test_a_copy_that_begins_in_mid_sector():
    found = report("copy", (1,), (32,), floats(40)[1:33], floats(32), 32, 1)
    assert only(found, "global load").sectors_a_request == 5


def test_sixteen_bytes_a_lane():
    found = report("copy_vector", (1,), (32,), floats(128), floats(128))
    assert [only(found, kind).sectors_a_request for kind in ("global load", "global store")] == [16, 16]
    assert only(found, "global load").size == 16


@pytest.mark.parametrize("name, ways", [("transpose_32", 32), ("transpose_33", 1)])
def test_transpose(name, ways):
    x, y = floats(1024), floats(1024)
    found = report(name, (1,), (32, 32), x, y)
    np.testing.assert_array_equal(y.reshape(32, 32), x.reshape(32, 32).T)
    assert only(found, "shared store").bank_ways == 1
    load = only(found, "shared load")
    assert (load.line, load.requests, load.bank_ways) == (12, 32, ways)


def test_active_lanes():
    found = report("half_the_lanes", (1,), (64,), floats(1), floats(64))
    load, store = only(found, "global load"), only(found, "global store")
    assert (load.active_lanes, load.sectors_a_request, load.ideal_sectors) == (16, 1, 1)  # all read one element
    assert (store.active_lanes, store.sectors_a_request, store.ideal_sectors) == (16, 4, 2)
    assert only(found, "instructions", 24).active_lanes == 16


def test_rms_norm():
    """Two blocks of 64 threads on rows of 256: each line reads or writes every element once."""
    kernel = RawKernel(load_source("ch03_rms_norm/rms_norm.cu"), "rms_norm_tree", check=True, count=True)
    x, out = floats(512).reshape(2, 256), np.zeros((2, 256), np.float32)
    kernel((2,), (64,), (x, np.ones(256, np.float32), out, 256, 1e-5))
    found = kernel.report()
    for count in (*found.of("global load"), *found.of("global store")):
        assert count.sectors_a_request == count.ideal_sectors == 4
    # x in the sum: 512 elements; x and the weight in the last line: 1,024; 32 a request
    assert [count.requests for count in found.of("global load")] == [16, 32]
    assert only(found, "global store").requests == 16
    assert all(count.bank_ways == 1 for count in found.of("shared load"))
    tree = max(found.of("shared store"), key=lambda count: count.requests)
    assert tree.requests == 2 * 6  # strides 32, 16, 8, 4, 2, 1 of one warp, in two blocks
    assert tree.lanes == 2 * (32 + 16 + 8 + 4 + 2 + 1)


def test_without_counters():
    kernel = RawKernel(CODE, "copy", check=True)
    with pytest.raises(KernelError, match="nothing was counted; make the kernel with check=True, count=True"):
        kernel.report()
    with pytest.raises(KernelError, match="count=True is a part of check mode"):
        RawKernel(CODE, "copy", check=False, count=True)
    with pytest.raises(KernelError, match="nothing was launched yet"):
        RawModule(CODE, check=True, count=True).get_function("copy").report()


def test_the_picture():
    pytest.importorskip("matplotlib")
    figure = plot(report("transpose_32", (1,), (32, 32), floats(1024), floats(1024)))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [
        "counted.cu:10 global load: 4 sectors of 32 bytes for one warp",
        "counted.cu:12 shared load: 32 of one bank at once",
    ]
    with pytest.raises(KernelError, match="touches no memory in line 99"):
        plot(report("copy", (1,), (32,), floats(32), floats(32), 32, 1), line=99)
