"""Machine code for one architecture alone, such as sm_90a, in a file that cupy.RawModule(path=...) loads.

CuPy compiles for sm_90 on an sm_90 GPU and cannot be told otherwise, so the same compiler is called here with the
options that CuPy would add. Its disk cache is not ours to write to: the files lie in our own.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from tiny_vllm.cache import cache_root, writable_folder
from tiny_vllm.device.cupy_setup import import_cupy
from tiny_vllm.device.nvrtc import CUPY_OPTIONS
from tiny_vllm.errors import CompileError


def cubin_file(code: str, architecture: str, options: tuple[str, ...]) -> Path:
    """The file of a source compiled for sm_<architecture>, "90a", made once.

    options: NVRTC's, beside those that CuPy adds. Raises CompileError with the compiler's message.
    """
    nvrtc = import_cupy().cuda.nvrtc
    flags = (*options, f"-I{_headers()}", *CUPY_OPTIONS, f"-arch=sm_{architecture}")
    folder, key = writable_folder(cache_root() / "cubin"), _key(code, flags, nvrtc.getVersion())
    for file in folder.glob(f"{key}-*.cubin"):
        if _is_whole(file):
            return file
    cubin = _compile(nvrtc, code, flags)
    try:
        return _write(folder, key, cubin)
    except OSError:  # full or over quota: no folder is under a file, so this one is the private stand-in
        return _write(writable_folder(Path(os.devnull) / "cubin"), key, cubin)


def _headers() -> str:
    """The folder of cuda_bf16.h, found as CuPy does; check_toolkit has looked that it is there."""
    from cuda.pathfinder import find_nvidia_header_directory

    return str(find_nvidia_header_directory("cudart"))


def _key(code: str, flags: tuple[str, ...], version: tuple[int, int]) -> str:
    return _digest("\0".join([code, *flags, *map(str, version)]).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _is_whole(file: Path) -> bool:
    """Whether the file is what was written, not half of it left by a full disk."""
    try:
        return file.stem.endswith(f"-{_digest(file.read_bytes())}")
    except OSError:
        return False


def _write(folder: Path, key: str, cubin: bytes) -> Path:
    """Write beside, then move: another process sees all of the file or nothing.

    CuPy loads a path once a process, whatever it holds later: the name must change with what is in the file.
    """
    file = folder / f"{key}-{_digest(cubin)}.cubin"
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as name:
        made = Path(name) / file.name
        made.write_bytes(cubin)
        os.replace(made, file)
    return file


def _compile(nvrtc: Any, code: str, flags: tuple[str, ...]) -> bytes:
    program = nvrtc.createProgram(code, "kernel.cu", (), ())  # the name in messages, unless a #line says other
    try:
        nvrtc.compileProgram(program, flags)
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        raise CompileError(nvrtc.getProgramLog(program).strip() or str(error)) from None
    finally:
        nvrtc.destroyProgram(program)
