"""Compiles .cu text with NVRTC, CUDA's run-time compiler, on a machine with no GPU and no driver.

What the emulator's C++ compiler takes and CUDA does not shows here, and so do registers and spills. Needs the wheels
nvidia-cuda-nvrtc and nvidia-cuda-runtime only.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tiny_vllm.device.source import COMMON_OPTIONS
from tiny_vllm.errors import CompileError, DeviceError

CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")  # what CuPy adds to every compilation


@dataclass
class KernelUsage:
    """What one kernel takes of an SM: 32-bit registers a thread, bytes of local memory a thread, of shared a block."""

    registers: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0


@dataclass
class Report:
    """A compilation: the size of the machine code in bytes, and what each kernel uses, by its name in the binary."""

    cubin_bytes: int
    kernels: dict[str, KernelUsage] = field(default_factory=dict)


def compile_cuda(
    code: str, name: str = "kernel.cu", architecture: int | str = 80, options: tuple[str, ...] = ()
) -> Report:
    """Compile for sm_<architecture>, 80 or "90a"; name is the file in messages unless #line says other.

    Raises CompileError with the log, DeviceError when NVRTC is not installed.
    """
    nvrtc, includes = _load()
    flags = [f"-arch=sm_{architecture}", *(f"-I{folder}" for folder in includes), "--ptxas-options=-v"]
    flags += [*COMMON_OPTIONS, *CUPY_OPTIONS, *_no_cache(nvrtc), *options]
    program = ctypes.c_void_p()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), code.encode(), name.encode(), 0, None, None))
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*map(str.encode, flags)))
        log = _log(nvrtc, program)
        if status:
            raise CompileError(log.strip() or _words(nvrtc, status))
        size = ctypes.c_size_t()
        _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        return Report(size.value, read_usage(log))
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _no_cache(nvrtc: Any) -> tuple[str, ...]:
    """Where there is a driver, NVRTC keeps what it has compiled (from CUDA 12.9 on), and says nothing the next time."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return ("-no-cache",) if (major.value, minor.value) >= (12, 9) else ()


def read_usage(log: str) -> dict[str, KernelUsage]:
    """What ptxas says of each kernel."""
    found: dict[str, KernelUsage] = {}
    current = KernelUsage()
    for line in log.splitlines():
        if match := re.search(r"(?:Compiling entry function|Function properties for) '?(\w+)", line):
            current = found.setdefault(match[1], KernelUsage())
        if match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            current.stack_bytes, current.spill_bytes = int(match[1]), int(match[2]) + int(match[3])
        if match := re.search(r"Used (\d+) registers", line):
            current.registers = int(match[1])
        if match := re.search(r"(\d+) bytes smem", line):
            current.shared_bytes = int(match[1])
    return found


@lru_cache(maxsize=1)
def _load() -> tuple[Any, tuple[Path, ...]]:
    """The library and the folders of its headers, from the wheels of CUDA 12 or 13."""
    spec = importlib.util.find_spec("nvidia")
    for root in map(Path, (spec.submodule_search_locations or ()) if spec else ()):
        for compiler, headers in (("cu13", "cu13"), ("cuda_nvrtc", "cuda_runtime")):  # CUDA 13, CUDA 12
            libraries = sorted((root / compiler).glob("lib/libnvrtc.so*"))
            if libraries and (root / headers / "include" / "cuda_bf16.h").is_file():
                for builtins in (root / compiler).glob("lib/libnvrtc-builtins.so*"):
                    ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)  # NVRTC looks for it by name
                includes = {root / compiler / "include", root / headers / "include"}
                return ctypes.CDLL(str(libraries[0])), tuple(sorted(includes))
    raise DeviceError('NVRTC and its headers are not installed; pip install "cuda-toolkit[cudart,nvrtc]==13.*"')


def _log(nvrtc: Any, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    _check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(max(size.value, 1))
    _check(nvrtc, nvrtc.nvrtcGetProgramLog(program, buffer))
    return buffer.value.decode(errors="replace")


def _words(nvrtc: Any, status: int) -> str:
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc.nvrtcGetErrorString(status).decode()


def _check(nvrtc: Any, status: int) -> None:
    if status:
        raise CompileError(_words(nvrtc, status))
