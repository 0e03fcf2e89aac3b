"""Compiles a translation unit into a shared library, once: the result is kept under a key of all that matters."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tiny_vllm.cache import cache_root, writable_folder
from tiny_vllm.device.emulator.compiler import CPP, Compiler, cpu_fingerprint, find_compiler, header_digest
from tiny_vllm.device.emulator.translate import reader_files
from tiny_vllm.errors import CompileError

_PTX = (
    "The kernel holds inline PTX (asm), which a CPU cannot run: use the functions of kernels/ptx.cuh, which the "
    "emulator has too."
)
_HINTS = {
    "Assembler messages": _PTX,
    "invalid instruction mnemonic": _PTX,  # clang
    "frame-larger-than": "A thread of the emulator has 64 KiB for its local variables: use smaller arrays.",
}


def build_kernels(unit: str, flags: Sequence[str] = ()) -> Path:
    """The shared library of a kernel's translation unit.

    flags: -D, -U, -I and -std, beside the emulator's own. Raises CompileError with the compiler's message, which names
    the reader's file and line, and DeviceError when there is no compiler.
    """
    compiler = find_compiler()
    return cached_library(compiler, unit, [*compiler.kernel_flags(), *flags], reader_files(unit))


def preprocess(code: str, flags: Sequence[str]) -> str:
    """The text as the compiler sees it: macros replaced, the parts between #if and #endif chosen."""
    compiler = find_compiler()
    done = compiler.run(["-E", "-P", "-w", *flags, f"-I{CPP / 'include'}", "-x", "c++", "-"], input=code)
    if done.returncode != 0:
        raise CompileError(_message(done.stderr))
    return done.stdout


def build_guard() -> Path:
    """The shared library of cpp/guard.cpp, which runs launches."""
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", f"-I{CPP}"]
    # glibc's checked longjmp takes a jump from one stack to another for an error.
    text = (CPP / "guard.cpp").read_text(encoding="utf-8")
    return cached_library(find_compiler(), text, ["-U_FORTIFY_SOURCE", *flags], {})


def cache_key(compiler: Compiler, unit: str, flags: Sequence[str]) -> str:
    """Changes with the text, any header, the flags, the compiler and the CPU."""
    parts = [unit, header_digest(), *flags, *compiler.command, compiler.version, cpu_fingerprint()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def cached_library(
    compiler: Compiler, unit: str, flags: Sequence[str], files: dict[str, str], link: Sequence[str] = ()
) -> Path:
    """What the compiler makes of a unit.

    files: the reader's, by name. link: with these arguments a second step makes a library of what the first one gave.
    """
    cache, key = writable_folder(cache_root() / "emulator"), cache_key(compiler, unit, [*flags, *link])
    for library in cache.glob(f"{key}-*.so"):
        if _is_whole(library):
            return library
    try:
        return _compile_into(cache, key, compiler, unit, flags, files, link)
    except OSError:  # full or over quota: no folder is under a file, so this one is the private stand-in
        stand_in = writable_folder(Path(os.devnull) / "emulator")
        return _compile_into(stand_in, key, compiler, unit, flags, files, link)


def _is_whole(library: Path) -> bool:
    """Whether the file is what was written: to load half of one, left by a full disk, would end the process."""
    try:
        return library.stem.endswith(f"-{_digest(library)}")
    except OSError:
        return False


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()[:16]


def _compile_into(
    cache: Path,
    key: str,
    compiler: Compiler,
    unit: str,
    flags: Sequence[str],
    files: dict[str, str],
    link: Sequence[str],
) -> Path:
    """Compile in a folder of its own, then move: another process sees all of the library or nothing."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as name:
        folder = Path(name)
        _write_reader_files(folder, files)
        source, result = folder / "unit.cpp", folder / "unit.so"
        source.write_text(unit, encoding="utf-8")
        # Built where the reader's files lie under their own names, so that messages quote the right line.
        done = compiler.run([*flags, "unit.cpp", "-o", "unit.o" if link else "unit.so"], cwd=folder)
        if link and done.returncode == 0:
            done = compiler.run(["-shared", "unit.o", *link, "-o", "unit.so"], cwd=folder)
        if done.returncode != 0:
            raise CompileError(_message(done.stderr))
        library = cache / f"{key}-{_digest(result)}.so"
        os.replace(result, library)
    return library


def _write_reader_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        if not os.path.isabs(name) and ".." not in Path(name).parts:
            with suppress(OSError):  # two names that cannot stand side by side: a message quotes one line less
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")


def _message(errors: str) -> str:
    hints = [hint for sign, hint in _HINTS.items() if sign in errors]
    return "\n".join(["the kernel does not compile:", errors.strip(), *hints])
