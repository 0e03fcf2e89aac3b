"""Check mode: what a GPU leaves silent, named by file and line, and counters of what each line asks of the memory.

    kernel = RawKernel(code, "rms_norm", check=True)                 # or TINY_VLLM_CHECK=1 for every kernel
    kernel(grid, block, args)                                        # KernelCheckError lists all that it found
    kernel = RawKernel(code, "rms_norm", check=True, count=True)
    kernel(grid, block, args); print(kernel.report()); plot(kernel.report())

The kernel's text is compiled unchanged with the compiler's instrumentation for sanitizers, and linked with cpp/check in
the place of their libraries: each load and store calls it. What it looks for:

* out of bounds: arguments (with a gap behind each as wide as itself), shared arrays, local arrays by their index;
* races: two threads, one place, one of them writing, and no barrier, __syncwarp or atomic between. Shuffles and votes
  order no memory. Two threads that write the same value race too. Blocks are ordered by nothing, but for a
  __threadfence and an atomic operation in both;
* barriers that a thread never reaches, because it returned, or reaches at another line;
* reads of shared memory, or of an array from device.empty, that nothing wrote;
* warp operations whose mask names absent lanes; misaligned vectors; null pointers; integer division by zero; loops
  without an end (at the time limit).

It does not see: an index that stays inside its own array, a gap jumped over by more than the array's size, arrays of
one-byte elements that nothing wrote, the order of threads that a GPU would choose. order="reverse" runs the last thread
first.
"""

from tiny_vllm.device.emulator.check.counts import Count, Report
from tiny_vllm.device.emulator.check.findings import Finding
from tiny_vllm.device.emulator.check.picture import plot
from tiny_vllm.device.emulator.check.poison import never_written
from tiny_vllm.errors import KernelCheckError

__all__ = ["Count", "Finding", "KernelCheckError", "Report", "never_written", "plot"]
