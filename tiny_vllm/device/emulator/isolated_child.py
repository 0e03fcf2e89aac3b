"""The child process of isolate.py: runs the launches that it is told, on copies of the arrays."""

from __future__ import annotations

import ctypes
import mmap
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiny_vllm.device.emulator.isolate import View
from tiny_vllm.device.emulator.launch import RawModule
from tiny_vllm.device.emulator.process import serve
from tiny_vllm.errors import KernelCheckError


def run() -> None:
    """Answer launches until the parent is gone."""
    kernels: dict[Any, Any] = {}
    serve(lambda message: pickle.dumps(_answer(pickle.loads(message), kernels), 5))


def _answer(message: Any, kernels: dict[Any, Any]) -> tuple[str, str, str, list[bytes]]:
    definition, name, shape, spans, args = message
    printed = _Printed()
    sys.stdout = printed
    try:
        kernel = _kernel(definition, name, kernels)
        memory = [_guarded(span) for span in spans]
        kernel.max_dynamic_shared_size_bytes = max(kernel.max_dynamic_shared_size_bytes, shape.shared_mem)
        kernel(shape.grid, shape.block, [_array(arg, memory) for arg in args], shared_mem=shape.shared_mem)
        return "done", "", printed.text, [part.tobytes() for part in memory]
    except KernelCheckError as error:
        spans = [part.tobytes() for part in memory]
        return type(error).__name__, str(error), printed.text, [*spans, pickle.dumps(error.findings)]
    except Exception as error:
        return type(error).__name__, str(error), printed.text, []


class _Printed:
    """Collects what kernels print."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        """Nothing to do: the text travels with the answer."""


def _kernel(definition: Any, name: str, kernels: dict[Any, Any]) -> Any:
    if (definition, name) not in kernels:
        code, options, name_expressions, settings = definition
        kernels[definition, name] = RawModule(code, options, name_expressions, **dict(settings)).get_function(name)
    return kernels[definition, name]


def _array(arg: Any, memory: Sequence[np.ndarray]) -> Any:
    if not isinstance(arg, View):
        return arg
    return np.ndarray(arg.shape, arg.dtype, memory[arg.span], arg.offset, arg.strides)


def _guarded(span: bytes) -> np.ndarray:
    """The span's bytes, right before a page that ends the launch when it is touched."""
    page = mmap.PAGESIZE
    room = -(-len(span) // page) * page
    memory = mmap.mmap(-1, room + page)
    whole = np.frombuffer(memory, np.uint8)
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(whole.ctypes.data + room), ctypes.c_size_t(page), 0)
    start = (room - len(span)) & ~15  # arrays are aligned, for kernels that read 16 bytes at once
    part = whole[start : start + len(span)]
    part[:] = np.frombuffer(span, np.uint8)
    return part
