"""Compiles a kernel of two lines and runs it: on the emulator, and on the GPU with a product by cuBLAS."""

from __future__ import annotations

import numpy as np

from tiny_vllm.doctor.finding import first_line
from tiny_vllm.errors import KernelError, UserError

ADD_ONE = """extern "C" __global__ void add_one(float* x, int n) {
    int first = 32 * blockIdx.x;
    if (first + threadIdx.x < n) x[first + threadIdx.x] += 1.0f;
}"""


def run_kernel(device_name: str) -> str | None:
    """Why it does not run there, in a sentence; None when it does and gives the right numbers."""
    from tiny_vllm.device import get_device

    host = np.arange(70, dtype=np.float32)
    try:
        device = get_device(device_name)
        x = device.asarray(host)
        device.RawKernel(ADD_ONE, "add_one")((3,), (32,), (x, 70))
        if not np.array_equal(device.to_host(x), host + 1):
            return "the kernel ran and gave wrong numbers"
        return None
    except (UserError, KernelError, OSError) as error:
        return _message(error)


def run_gemm() -> str | None:
    """Why cuBLAS does not multiply on the GPU; None when it does."""
    from tiny_vllm.device import get_device

    x, weight = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(4, 3)
    try:
        device = get_device("cuda")
        out = device.zeros((2, 4), np.float32)
        device.gemm(device.asarray(x), device.asarray(weight), out)
        return None if np.array_equal(device.to_host(out), x @ weight.T) else "the product is wrong"
    except (UserError, KernelError, OSError) as error:
        return _message(error)


def _message(error: Exception) -> str:
    """A compiler's message has the reason in its second line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        return f"{lines[0]} {lines[1]}"
    return first_line(error)
