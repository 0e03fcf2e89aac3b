"""What goes wrong on the emulator: refused launches, crashes, endless loops. Python stays alive and says why."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tiny_vllm.device.emulator import Emulator, RawKernel, RawModule
from tiny_vllm.device.emulator.settings import Settings
from tiny_vllm.errors import CompileError, KernelError, LaunchError, UserError

KERNELS = Path(__file__).parent / "kernels"
CODE = (KERNELS / "faults.cu").read_text()
FAR = 1 << 44  # elements: no process has memory there


@pytest.fixture(scope="module")
def faults() -> RawModule:
    return Emulator().RawModule(CODE, timeout=0.3)


@pytest.fixture(scope="module")
def fill() -> RawKernel:
    return RawKernel(
        'extern "C" __global__ void fill(int* out) { out[blockIdx.x * blockDim.x + threadIdx.x] = 9; }', "fill"
    )


def ints(count: int) -> np.ndarray:
    return np.full(count, -1, np.int32)


@pytest.mark.parametrize(
    "grid, block, words",
    [
        ((1,), (2048,), "block x is 2048; the limit is 1024"),
        ((1,), (64, 32), "block of 2048 threads; the limit is 1024"),
        ((1,), (1, 1, 65), "block z is 65; the limit is 64"),
        ((1, 65_536), (1,), "grid y is 65536; the limit is 65535"),
        ((1, 1, 65_536), (1,), "grid z is 65536"),
        ((2**31,), (1,), "grid x is 2147483648; the limit is 2147483647"),
        ((0,), (32,), "grid x is 0"),
        ((1,), (0,), "block x is 0"),
        ((1,), (-1,), "block x is -1"),
    ],
)
def test_sizes_that_cuda_refuses(fill, grid, block, words):
    out = ints(64)
    with pytest.raises(LaunchError, match=rf"fill: CUDA_ERROR_INVALID_VALUE: invalid argument \({words}"):
        fill(grid, block, (out,))
    assert (out == -1).all()


@pytest.mark.parametrize("grid, block", [(1, (32,)), ((1,), 32), ((1.0,), (32,)), ((), (1,)), ((1, 1, 1, 1), (1,))])
def test_sizes_that_are_no_tuples(fill, grid, block):
    with pytest.raises(TypeError, match=r"fill: (grid|block) is"):
        fill(grid, block, (ints(64),))


def test_dynamic_shared_memory_has_a_limit_that_can_be_raised(fill):
    out = ints(32)
    kernel = RawKernel(
        'extern "C" __global__ void k(int* out) { extern __shared__ int s[]; s[1] = 4; out[0] = s[1]; }',
        "k",
    )
    kernel((1,), (1,), (out,), shared_mem=48 * 1024)
    with pytest.raises(LaunchError, match="49153 bytes of dynamic shared memory; the limit is 49152"):
        kernel((1,), (1,), (out,), shared_mem=48 * 1024 + 1)
    kernel.max_dynamic_shared_size_bytes = 227 * 1024
    kernel((1,), (1,), (out,), shared_mem=227 * 1024)
    with pytest.raises(LaunchError, match="the limit is 232448"):
        kernel.max_dynamic_shared_size_bytes = 228 * 1024


def test_static_shared_memory_counts_per_kernel():
    code = """
    extern "C" __global__ void small(float* x) { __shared__ float a[6 * 1024]; a[0] = 2; x[0] = a[int(x[0])]; }
    extern "C" __global__ void large(float* x) { __shared__ float b[9 * 1024]; b[0] = 2; x[0] = b[int(x[0])]; }
    extern "C" __global__ void huge(float* x) { __shared__ float c[13 * 1024]; c[0] = 2; x[0] = c[int(x[0])]; }
    """
    module, x = RawModule(code), np.zeros(1, np.float32)
    kernel = module.get_function("small")
    kernel((1,), (1,), (x,), shared_mem=24 * 1024)
    with pytest.raises(LaunchError, match="the limit is 24576"):
        kernel((1,), (1,), (x,), shared_mem=24 * 1024 + 4)
    assert module.get_function("large").shared_size_bytes == 36 * 1024
    with pytest.raises(CompileError, match=r"huge uses too much shared data \(53248 bytes, 49152 max\)"):
        module.get_function("huge")


def test_a_name_that_cuda_would_not_find():
    module = RawModule('extern "C" __global__ void here(int* x) {} __global__ void mangled(int* x) {}')
    with pytest.raises(LaunchError, match="mangled: CUDA_ERROR_NOT_FOUND: named symbol not found"):
        module.get_function("mangled")
    with pytest.raises(KernelError, match="no kernel nowhere"):
        module.get_function("nowhere")


@pytest.mark.parametrize(
    "args, words",
    [
        (lambda x, y: (x, y), "got 2 arguments, wants 3"),
        (lambda x, y: (x.astype(np.float64), y, 3), "argument x .*float64"),
        (lambda x, y: (x[::2], y, 3), "argument x .*non-contiguous"),
        (lambda x, y: (x, y, 3.5), "argument n .*float"),
        (lambda x, y: (x, y, 2**31), "argument n .*2147483648"),
        (lambda x, y: (3, y, 3), "argument x .*int 3"),
    ],
)
def test_arguments_that_do_not_fit(args, words):
    kernel = RawModule(CODE).get_function("one_past_the_end")
    x, y = np.zeros(8, np.float32), np.zeros(8, np.float32)
    with pytest.raises(TypeError, match=f"one_past_the_end: {words}"):
        kernel((1,), (8,), args(x, y))


@pytest.mark.parametrize("name, threads", [("spin", 3), ("spin_behind_barrier", 64)])
def test_an_endless_loop_ends_at_the_deadline(faults, name, threads):
    kernel, out, start = faults.get_function(name), ints(threads), time.monotonic()
    words = rf"{name}: the launch timed out and was terminated \(CUDA_ERROR_LAUNCH_TIMEOUT\): no end after 0.3 s"
    with pytest.raises(LaunchError, match=words):
        kernel((1,), (threads,), (np.zeros(1, np.int32), out))
    assert time.monotonic() - start < 30
    kernel((1,), (threads,), (np.ones(1, np.int32), out))  # the next launch is well
    assert (out == (1 if name == "spin" else np.arange(threads)[::-1])).all()


def test_an_endless_loop_in_one_of_two_workers():
    code = 'extern "C" __global__ void k(int* x, int bad) { while (blockIdx.x == bad) {} x[blockIdx.x] = 1; }'
    kernel, out = RawKernel(code, "k", timeout=0.3, workers=2), ints(100_000)
    with pytest.raises(LaunchError, match="CUDA_ERROR_LAUNCH_TIMEOUT"):
        kernel((100_000,), (1,), (out, 60_000))
    kernel((100_000,), (1,), (out, -1))
    assert (out == 1).all()


@pytest.mark.parametrize("name", ["far_write", "far_write_on_fiber"])
def test_an_illegal_address(faults, name):
    kernel, out = faults.get_function(name), ints(64)
    with pytest.raises(LaunchError, match=rf"{name}: an illegal memory access .*\(CUDA_ERROR_ILLEGAL_ADDRESS\), at 0x"):
        kernel((1,), (64,), (out, FAR))
    kernel((1,), (64,), (out, 0))
    assert (out == 7).sum() >= 63


def test_a_null_pointer(faults):
    with pytest.raises(LaunchError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        faults.get_function("far_write")((1,), (1,), (ints(1), -(ints(1).ctypes.data // 4)))


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="this CPU does not trap an integer division by zero")
def test_an_integer_division_by_zero(faults):
    kernel, out = faults.get_function("divide"), ints(3)
    with pytest.raises(LaunchError, match="divide: an integer was divided by zero"):
        kernel((1,), (3,), (out, 0))
    kernel((1,), (3,), (out, 4))
    assert (out == 3).all()


def test_trap_and_assert(faults):
    out = ints(64)
    with pytest.raises(LaunchError, match=r"trap: unspecified launch failure .*__trap"):
        faults.get_function("trap")((1,), (64,), (out, 50))
    with pytest.raises(LaunchError, match=r"check_sign: device-side assert triggered .*assertion `x"):
        faults.get_function("check_sign")((1,), (64,), (np.arange(64, dtype=np.int32) - 3, out))
    faults.get_function("check_sign")((1,), (64,), (np.arange(64, dtype=np.int32), out))
    assert (out == np.arange(64)).all()


def test_threads_that_wait_for_each_other(faults):
    with pytest.raises(
        LaunchError, match=r"missing_lanes: .*deadlock in block \(0, 0, 0\); thread 0 waits at a warp operation"
    ):
        faults.get_function("missing_lanes")((1,), (32,), (ints(32),))
    with pytest.raises(LaunchError, match=r"different_masks: .*deadlock"):
        faults.get_function("different_masks")((1,), (3,), (ints(3),))


def test_a_crash_outside_a_kernel_still_ends_the_process(tmp_path):
    """The guard's handlers pass on what is not theirs."""
    script = (
        "import ctypes, faulthandler, numpy as np; faulthandler.enable()\n"
        "from tiny_vllm.device.emulator import RawKernel\n"
        "RawKernel('extern \"C\" __global__ void k(int* x) { x[0] = 1; }', 'k')((1,), (1,), (np.zeros(1, np.int32),))\n"
        "ctypes.string_at(8)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == -11 and "Segmentation fault" in done.stderr


def test_compile_errors_name_the_readers_line():
    code = '#line 1 "kernels/wrong.cu"\nextern "C" __global__ void wrong(float* x) {\n    x[0] = foo;\n}\n'
    with pytest.raises(CompileError, match=r"kernels/wrong.cu:2:12: error: .*foo.*\n +2 \| +x\[0\] = foo;"):
        RawKernel(code, "wrong")


@pytest.mark.parametrize("text", ["INFINITY", "NAN", "__nv_bfloat16(1.0f)", "CUDART_INF_F", "M_PI"])
def test_what_nvrtc_does_not_know_does_not_compile(text):
    with pytest.raises(CompileError, match=r"not declared|undeclared"):
        RawKernel(f'extern "C" __global__ void k(float* x) {{ x[0] = {text}; }}', "k")


def test_inline_ptx_is_named():
    with pytest.raises(CompileError, match="inline PTX"):
        RawKernel('extern "C" __global__ void k(int* x) { asm volatile("mov.u32 %0, 1;" : "=r"(x[0])); }', "k")


def test_local_arrays_that_no_stack_holds():
    code = 'extern "C" __global__ void k(float* x, int i) { float a[20000]; a[i] = x[0]; x[0] = a[i / 2]; }'
    with pytest.raises(CompileError, match="64 KiB for its local variables"):
        RawKernel(code, "k")


def test_options():
    code = 'extern "C" __global__ void k(int* x) { x[0] = A; x[1] = B; }'
    out = ints(2)
    RawKernel(code, "k", ("-DA=5", "--define-macro=B=6", "--use_fast_math", "-std=c++17"))((1,), (1,), (out,))
    assert out.tolist() == [5, 6]
    with pytest.raises(KernelError, match="option --turbo: unknown"):
        RawKernel(code, "k", ("-DA=5", "-DB=6", "--turbo"))
    with pytest.raises(KernelError, match=r"option -std=c\+\+11"):
        RawKernel(code, "k", ("-std=c++11",))


def test_a_kernel_that_the_preprocessor_takes_away():
    code = """
    #if __CUDA_ARCH__ >= 900
    extern "C" __global__ void modern(int* x) { x[0] = 90; }
    #endif
    extern "C" __global__ void plain(int* x) { x[0] = __CUDA_ARCH__; }
    """
    out = ints(1)
    module = RawModule(code, compute_capability=75)
    module.get_function("plain")((1,), (1,), (out,))
    assert out[0] == 750
    with pytest.raises(LaunchError, match="NOT_FOUND"):
        module.get_function("modern")
    RawModule(code).get_function("modern")((1,), (1,), (out,))
    assert out[0] == 90


def test_settings_from_the_environment(monkeypatch):
    monkeypatch.setenv("TINY_VLLM_TIMEOUT", "1.5")
    monkeypatch.setenv("TINY_VLLM_WORKERS", "3")
    assert (Settings().timeout, Settings().workers) == (1.5, 3)
    monkeypatch.setenv("TINY_VLLM_TIMEOUT", "soon")
    with pytest.raises(UserError, match="TINY_VLLM_TIMEOUT is 'soon'"):
        Settings()
    monkeypatch.delenv("TINY_VLLM_TIMEOUT")
    monkeypatch.setenv("TINY_VLLM_WORKERS", "0")
    with pytest.raises(UserError, match="TINY_VLLM_WORKERS is '0'"):
        Settings()
    with pytest.raises(TypeError):
        Settings(speed=3)  # type: ignore[call-arg]
