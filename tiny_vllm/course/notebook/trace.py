"""`trace`: what a shared array holds at each barrier, seen by rewriting the kernel's text.

The kernel gets four more parameters, and a record after each `__syncthreads();`: every thread of block 0 copies its own
element of the array out, then all wait once more, so that nobody runs ahead. It works on a GPU and on the emulator
alike, and lines keep their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiny_vllm.course.notebook.cuda_text import blanked, function
from tiny_vllm.device.base import Device
from tiny_vllm.errors import UserError

MAX_BARRIERS = 256  # of one kernel that are recorded

_BARRIER = re.compile(r"\b__syncthreads\s*\(\s*\)\s*;")
_PARAMETERS = ", float* trace_values, int* trace_barriers, int trace_limit, int trace_width"
_RECORD = (
    "{{ __syncthreads(); if (blockIdx.x + blockIdx.y + blockIdx.z == 0 && trace_barrier < trace_limit) {{ "
    "int trace_thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); "
    "if (trace_thread < trace_width{inside}) "
    "trace_values[trace_barrier * trace_width + trace_thread] = float({array}[trace_thread]); "
    "trace_barrier++; if (trace_thread == 0) *trace_barriers = trace_barrier; }} __syncthreads(); }}"
)


def traced(text: str, kernel: str, array: str) -> str:
    """The text of a .cu file whose kernel records `array`, a one-dimensional shared array, after each barrier.

    UserError when the kernel has no such array, or no barrier.
    """
    place, code = function(text, kernel), blanked(text)
    body = code[place.open_brace : place.close_brace]
    declared = re.search(rf"\b__shared__\b[^;]*?\b{re.escape(array)}\s*\[\s*([^\]]*)\]", body)
    if declared is None:
        raise UserError(f"{place.name} declares no shared array {array!r}; give the name of one with [...]")
    static = declared[1].strip() != ""  # `extern __shared__ float a[];` has the length that the launch gives it
    inside = f" && trace_thread < int(sizeof({array}) / sizeof({array}[0]))" if static else ""
    record = _RECORD.format(array=array, inside=inside)
    barriers = [match.span() for match in _BARRIER.finditer(code, place.open_brace, place.close_brace)]
    if not barriers:
        raise UserError(f"{place.name} passes no __syncthreads(); there is nothing to trace")
    for begin, end in reversed(barriers):
        text = text[:begin] + record + text[end:]
    text = text[: place.open_brace + 1] + " int trace_barrier = 0;" + text[place.open_brace + 1 :]
    return text[: place.close_parenthesis] + _PARAMETERS + text[place.close_parenthesis :]


def run_traced(
    device: Device,
    code: str,
    kernel: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    args: Sequence[Any],
    options: tuple[str, ...] = (),
    shared_mem: int = 0,
) -> np.ndarray:
    """Launch a traced kernel; (barriers passed by thread 0 of block 0, threads of a block) float32.

    args: the kernel's own, on the device. A thread that has no element of the array, or that came to no barrier, is
    NaN there. UserError when the kernel passes more than 256 barriers.
    """
    width = int(np.prod(block))
    values = device.asarray(np.full((MAX_BARRIERS, width), np.nan, np.float32))
    barriers = device.asarray(np.zeros(1, np.int32))
    settings = {"isolated": True} if device.name == "emulator" else {}
    own = (*args, values, barriers, MAX_BARRIERS, width)
    device.RawKernel(code, kernel, options, **settings)(grid, block, own, shared_mem=shared_mem)
    count = int(device.to_host(barriers)[0])
    if count == MAX_BARRIERS:
        raise UserError(f"{kernel} passes {MAX_BARRIERS} barriers or more; trace a smaller case")
    return device.to_host(values)[:count]
