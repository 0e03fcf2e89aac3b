"""`trace`: the rewritten kernel computes what it did, and shows the shared array after each barrier."""

from __future__ import annotations

import numpy as np
import pytest

from tiny_vllm.course.notebook.trace import MAX_BARRIERS, run_traced, traced
from tiny_vllm.errors import UserError

TREE = """\
extern "C" __global__ void sum_tree(const float* x, float* out, int n) {
    __shared__ float partial[64];
    int t = threadIdx.x;
    partial[t] = x[blockIdx.x * n + t];
    __syncthreads();  // __syncthreads(); in a comment is none
    for (int s = blockDim.x / 2; s > 0; s /= 2) {
        if (t < s) partial[t] += partial[t + s];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = partial[0];
}
extern "C" __global__ void other(float* out) {
    __shared__ float few[3];
    extern __shared__ int many[];
    if (threadIdx.x < 3) few[threadIdx.x] = threadIdx.x + 0.5f;
    many[threadIdx.x] = 10 * threadIdx.x;
    if (blockDim.x > 1) __syncthreads();
    else
        out[0] = 1.0f;
    out[threadIdx.x] = few[0] + many[0];
}
extern "C" __global__ void turn(float* out) {
    __shared__ float a[8];
    a[threadIdx.x] = threadIdx.x;
    __syncthreads();
    a[(threadIdx.x + 1) % blockDim.x] = 100.0f + threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = a[threadIdx.x];
}
extern "C" __global__ void endless(float* out) {
    __shared__ float a[32];
    a[threadIdx.x] = 0.0f;
    for (int i = 0; i < 300; i++) __syncthreads();
    out[threadIdx.x] = a[threadIdx.x];
}
"""


def test_the_values_at_each_barrier(device):
    """The row of the lesson: its squares, halved three times; block 1 has other numbers and stays out."""
    x = np.square(np.array([[1, -1, 5, 3, 2, 0, 4, -4], [9] * 8], np.float32))
    out = device.asarray(np.full(2, np.nan, np.float32))
    code = traced(TREE, "sum_tree", "partial")
    values = run_traced(device, code, "sum_tree", (2,), (8,), [device.asarray(x), out, 8])
    assert values.shape == (4, 8)
    assert values[0].tolist() == [1, 1, 25, 9, 4, 0, 16, 16]
    assert values[1, :4].tolist() == [5, 1, 41, 25]
    assert values[2, :2].tolist() == [46, 26]
    assert values[3, 0] == 72
    assert device.to_host(out).tolist() == [72, 648]


def test_nobody_runs_ahead_of_the_record(device):
    """Each thread overwrites its neighbour's element right after the barrier."""
    out = device.asarray(np.zeros(8, np.float32))
    values = run_traced(device, traced(TREE, "turn", "a"), "turn", (1,), (8,), [out])
    assert values.tolist() == [list(range(8)), [107, 100, 101, 102, 103, 104, 105, 106]]


def test_lines_keep_their_numbers():
    code = traced(TREE, "sum_tree", "partial")
    assert code.count("\n") == TREE.count("\n")
    assert code.splitlines()[7].strip().startswith("{ __syncthreads();")


def test_an_array_shorter_than_the_block_and_one_without_a_length(device):
    out = device.asarray(np.zeros(5, np.float32))
    few = run_traced(device, traced(TREE, "other", "few"), "other", (1,), (5,), [out], shared_mem=20)
    assert few[0, :3].tolist() == [0.5, 1.5, 2.5] and np.isnan(few[0, 3:]).all()
    many = run_traced(device, traced(TREE, "other", "many"), "other", (1,), (5,), [out], shared_mem=20)
    assert many.tolist() == [[0, 10, 20, 30, 40]]


def test_a_barrier_behind_an_if_stays_behind_it(device):
    out = device.asarray(np.zeros(1, np.float32))
    assert run_traced(device, traced(TREE, "other", "few"), "other", (1,), (1,), [out], shared_mem=4).shape == (0, 1)


def test_what_cannot_be_traced(device):
    with pytest.raises(UserError, match=r"sum_tree declares no shared array 'total'"):
        traced(TREE, "tree", "total")
    with pytest.raises(UserError, match="passes no __syncthreads"):
        traced("__global__ void k() {  // __syncthreads();\n__shared__ float a[2]; }", "k", "a")
    out = device.asarray(np.zeros(4, np.float32))
    with pytest.raises(UserError, match=f"passes {MAX_BARRIERS} barriers or more"):
        run_traced(device, traced(TREE, "endless", "a"), "endless", (1,), (4,), [out])
