"""How threads meet on the emulator: barriers, warps, atomics, shared memory, printf."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiny_vllm.device.emulator import Emulator, RawKernel, RawModule
from tiny_vllm.device.emulator.translate import has_mutable_globals
from tiny_vllm.device.emulator.waits import may_wait

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture(scope="module")
def threads() -> RawModule:
    return Emulator().RawModule((KERNELS / "threads.cu").read_text(), workers=2)


def ints(*shape: int) -> np.ndarray:
    return np.full(shape, -1, np.int32)


@pytest.mark.parametrize("grid, block", [((1,), (1,)), ((3, 2, 2), (5, 3, 2)), ((7,), (1024,)), ((2, 3), (4, 4, 64))])
def test_indices(threads, grid, block):
    blocks, count = int(np.prod(grid)), int(np.prod(block))
    out = ints(blocks, count)
    threads.get_function("who_am_i")(grid, block, (out,))
    x, y, _ = (*block, 1, 1)[:3]
    t = np.arange(count)
    expected = t % x + 100 * (t // x % y) + 10000 * (t // (x * y)) + 1000000 * np.arange(blocks)[:, None]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("block", [(1,), (31,), (32,), (33,), (5, 3, 2), (1000,), (32, 32)])
def test_all_threads_meet_at_a_barrier(threads, block):
    count = int(np.prod(block))
    out = ints(3, count)
    threads.get_function("mirror")((3,), block, (out,))
    x, y, _ = (*block, 1, 1)[:3]
    t = np.arange(count)[::-1]
    np.testing.assert_array_equal(out, np.tile(t % x + 100 * (t // x % y) + 10000 * (t // (x * y)), (3, 1)))


@pytest.mark.parametrize("count", [1, 2, 50, 64])
def test_many_barriers_keep_the_order(threads, count):
    out = ints(count)
    threads.get_function("relay")((1,), (count,), (out, 200))
    baton = 1
    for i in range(200):
        baton = baton * 3 % 1000003 + i % count
    assert (out == baton).all()


@pytest.mark.parametrize("values", [[1, 2, 3, 7, 8] * 9, [0] * 40, [9] * 33])
def test_votes_at_a_barrier(threads, values):
    x = np.array(values, np.int32)
    out = ints(x.size)
    threads.get_function("votes_of_block")((1,), (x.size,), (x, out))
    assert (out == (x > 2).sum() * 100 + (x == 7).any() * 10 + (x < 9).all()).all()


@pytest.mark.parametrize("count", [70, 71, 72])  # the last thread waits, returns, waits
def test_a_barrier_does_not_wait_for_threads_that_returned(threads, count):
    out = ints(count)
    threads.get_function("early_exit")((1,), (count,), (out,))
    stays = np.arange(count) % 3 != 1
    assert (out[stays] == np.arange(count)[stays].sum()).all() and (out[~stays] == -1).all()


@pytest.mark.parametrize("width", [32, 16, 8])
def test_shuffles(threads, rng, width):
    x = rng.integers(0, 1000, 64).astype(np.int32)
    out = ints(4, 64)
    threads.get_function("shuffles")((1,), (64,), (x, out, width))
    lane = np.arange(64)
    begin, end = lane // width * width, lane // width * width + width
    sources = [begin + 5 % width, lane - 3, lane + 2, lane ^ 6]
    for row, source in zip(out, sources, strict=True):
        inside = (source >= begin) & (source < end)
        np.testing.assert_array_equal(row, x[np.where(inside, source, lane)])


def test_votes_of_half_warps(threads, rng):
    x = rng.integers(0, 100, 64).astype(np.int32)
    x[16:32] |= 1
    out = np.full((3, 64), 0xFFFFFFFF, np.uint32)
    threads.get_function("votes_of_warp")((1,), (64,), (x, out))
    for group in range(4):
        odd = x[group * 16 : group * 16 + 16] & 1
        ballot = sum(int(bit) << i for i, bit in enumerate(odd)) << 16 * (group % 2)
        assert (out[0, group * 16 : group * 16 + 16] == ballot).all()
        assert (out[1, group * 16 : group * 16 + 16] == odd.any() * 2 + odd.all()).all()
    following = np.where(np.arange(64) % 32 == 31, np.arange(64), np.arange(64) + 1)
    np.testing.assert_array_equal(out[2], x[following])


def test_atomics_from_blocks_side_by_side(threads, rng):
    n = 100_003
    x = rng.integers(0, 100, n).astype(np.int32)
    for _ in range(8):  # an addition that is not atomic gets lost sometimes, not always
        bins, odd = np.zeros(16, np.int32), np.zeros(1, np.uint32)
        total, top = np.zeros(1, np.float32), np.zeros(1, np.int32)
        threads.get_function("histogram")((-(-n // 256),), (256,), (x, n, bins, odd, total, top))
        np.testing.assert_array_equal(bins, np.bincount(x & 15, minlength=16))
        assert odd[0] == (x & 1).sum() and total[0] == n * 0.5 and top[0] == x.max()


def test_the_last_block_sees_what_all_wrote(threads, rng):
    blocks = 3000
    x = rng.integers(0, 100, blocks).astype(np.float32)
    partial, done = np.full(blocks, np.nan, np.float32), np.zeros(1, np.uint32)
    for _ in range(3):
        out = np.full(1, np.nan, np.float32)
        threads.get_function("last_block_sums")((blocks,), (64,), (x, partial, done, out))
        assert out[0] == x.sum() and done[0] == 0


def test_module_variables_are_one_for_all_blocks_and_stay():
    code = (KERNELS / "module_variable.cu").read_text()
    module = Emulator().RawModule(code, workers=2)
    kernel, out = module.get_function("count_blocks"), ints(60_000)  # enough for two workers to share
    kernel((60_000,), (1,), (out,))
    np.testing.assert_array_equal(np.sort(out), np.arange(60_000))
    kernel((2,), (1,), (out,))
    assert sorted(out[:2]) == [60_000, 60_001]
    Emulator().RawModule(code).get_function("count_blocks")((1,), (1,), (out,))
    assert out[0] == 0  # another module has its own


def test_shared_memory_starts_as_nan(threads):
    out = np.zeros(64, np.float32)
    kernel = threads.get_function("read_unwritten")
    kernel((1,), (32,), (out,), shared_mem=128)
    assert np.isnan(out).all()


def test_printf_goes_to_stdout(capsys):
    code = r"""extern "C" __global__ void hello(int n) {
        if (threadIdx.x == 2) printf("thread %d of %d, %.2f %s\n", threadIdx.x, n, 1.5f, "text");
    }"""
    kernel = RawKernel(code, "hello")
    kernel((2,), (4,), (4,))
    assert capsys.readouterr().out == "thread 2 of 4, 1.50 text\n" * 2
    kernel((1,), (2,), (4,))
    assert capsys.readouterr().out == ""


def test_launches_from_several_threads(threads):
    from concurrent.futures import ThreadPoolExecutor

    kernel = threads.get_function("mirror")
    outs = [ints(1, count) for count in range(30, 70)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda out: kernel((1,), (out.size,), (out,)), outs))
    for out in outs:
        np.testing.assert_array_equal(out[0], np.arange(out.size)[::-1])


@pytest.mark.parametrize(
    "text, waits",
    [
        ("__global__ void k(int n) { n++; }", False),
        ("__global__ void k(int n) { __syncthreads(); }", True),
        ("__global__ void k(int n) { /* __syncthreads(); */ } __global__ void other() { __syncwarp(); }", False),
        ("__device__ void meet() { __syncthreads(); }\n__global__ void k(int n) { meet(); }", True),
        (
            "__device__ void meet() { __syncthreads(); }\n__device__ void f() { meet(); }\nvoid k() { f(); }",
            True,
        ),
        ("#define MEET \\\n  __syncthreads()\n__global__ void k() { MEET; }", True),
        ("#define MEET __syncthreads()\n__global__ void k() {}", False),
        (
            "struct S { static int f(int v) { return __shfl_sync(~0u, v, 0); } };\n__global__ void k() { S::f(1); }",
            True,
        ),
        ("struct S { S() : v(1) { __syncthreads(); } int v; };\n__global__ void k() { S s; }", True),
        ("struct S { operator bool() { __syncwarp(); } };\n__global__ void k() { S s; if (s) {} }", True),
        ("#define CALL(x) x##threads()\nvoid f() { __syncthreads(); }\n__global__ void k() { CALL(__sync); }", True),
        ("template <typename T> __global__ void k(T* x) { if (x) { __syncwarp(); } }", True),
    ],
)
def test_which_kernels_wait(text, waits):
    assert may_wait(text, "k") is waits


@pytest.mark.parametrize(
    "text, mutable",
    [
        ("__device__ int counter;", True),
        ("__device__ float table[4] = {1, 2, 3, 4};", True),
        ("__device__ __align__(16) float table[4];", True),
        ("static __device__ unsigned long long x = 3;", True),
        ("__device__ int f(int x) { int y = 2; return x + y; }", False),
        ("__device__ __forceinline__ float g(float a);", False),
        ("__device__ const int limit = 3;", False),
        ("__constant__ float c[3];", False),
        ("// __device__ int counter;", False),
    ],
)
def test_which_modules_have_variables(text, mutable):
    assert has_mutable_globals(text) is mutable
