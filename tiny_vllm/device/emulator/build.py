"""Compiles a translation unit into a shared library, once: the result is kept under a key of all that matters."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tiny_vllm.cache import cache_root, writable_folder
from tiny_vllm.device.emulator.compiler import CPP, Compiler, cpu_fingerprint, find_compiler, header_digest
from tiny_vllm.device.emulator.translate import reader_files
from tiny_vllm.errors import CompileError

_HINTS = {
    "Assembler messages": "The kernel holds inline PTX (asm), which a CPU cannot run: use the functions of "
    "kernels/ptx.cuh, which the emulator has too.",
    "frame-larger-than": "A thread of the emulator has 64 KiB for its local variables: use smaller arrays.",
}


def build_kernels(unit: str, flags: Sequence[str] = ()) -> Path:
    """The shared library of a kernel's translation unit.

    flags: -D, -U, -I and -std, beside the emulator's own. Raises CompileError with the compiler's message, which names
    the reader's file and line, and DeviceError when there is no compiler.
    """
    compiler = find_compiler()
    return _cached(compiler, unit, [*compiler.kernel_flags(), *flags], reader_files(unit))


def preprocess(code: str, flags: Sequence[str]) -> str:
    """The text as the compiler sees it: macros replaced, the parts between #if and #endif chosen."""
    compiler = find_compiler()
    command = [*compiler.command, "-E", "-P", "-w", *flags, f"-I{CPP / 'include'}", "-x", "c++", "-"]
    done = subprocess.run(command, input=code, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise CompileError(_message(done.stderr))
    return done.stdout


def build_guard() -> Path:
    """The shared library of cpp/guard.cpp, which runs launches."""
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", f"-I{CPP}"]
    # glibc's checked longjmp takes a jump from one stack to another for an error.
    return _cached(find_compiler(), (CPP / "guard.cpp").read_text(), ["-U_FORTIFY_SOURCE", *flags], {})


def cache_key(compiler: Compiler, unit: str, flags: Sequence[str]) -> str:
    """Changes with the text, any header, the flags, the compiler and the CPU."""
    parts = [unit, header_digest(), *flags, *compiler.command, compiler.version, cpu_fingerprint()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _cached(compiler: Compiler, unit: str, flags: Sequence[str], files: dict[str, str]) -> Path:
    library = writable_folder(cache_root() / "emulator") / f"{cache_key(compiler, unit, flags)}.so"
    if library.exists():
        return library
    try:
        return _compile_into(library, compiler, unit, flags, files)
    except OSError:  # full or over quota: no folder is under a file, so this one is the private stand-in
        stand_in = writable_folder(Path(os.devnull) / "emulator")
        return _compile_into(stand_in / library.name, compiler, unit, flags, files)


def _compile_into(library: Path, compiler: Compiler, unit: str, flags: Sequence[str], files: dict[str, str]) -> Path:
    """Compile in a folder of its own, then move: another process sees all of the library or nothing."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as name:
        folder = Path(name)
        _write_reader_files(folder, files)
        source, result = folder / "unit.cpp", folder / "unit.so"
        source.write_text(unit)
        # Built where the reader's files lie under their own names, so that messages quote the right line.
        command = [*compiler.command, *flags, "unit.cpp", "-o", "unit.so"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            raise CompileError(_message(done.stderr))
        os.replace(result, library)
    return library


def _write_reader_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        if not os.path.isabs(name) and ".." not in Path(name).parts:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def _message(errors: str) -> str:
    hints = [hint for sign, hint in _HINTS.items() if sign in errors]
    return "\n".join(["the kernel does not compile:", errors.strip(), *hints])
