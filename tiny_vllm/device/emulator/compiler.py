"""The host's C++ compiler: which one, its version, and the flags that kernels are compiled with."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tiny_vllm.cache import cache_root, writable_folder
from tiny_vllm.errors import DeviceError

CPP = Path(__file__).parent / "cpp"
CANDIDATES = ("g++", "clang++", "c++")
ZIG = (sys.executable, "-m", "ziglang", "c++")  # clang from PyPI's package ziglang, for machines without a compiler
LARGEST_FRAME = 40_000  # bytes of local variables in one function, of the 64 KiB that cpp/launch_record.h gives

# -fno-strict-aliasing: kernels read float* as float4*, which CUDA allows. -ffp-contract: NVRTC fuses a * b + c too.
# A jump out of a launch must not leave a lock of a static variable taken.
_FLAGS = ["-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fdiagnostics-color=never", "-fno-threadsafe-statics"]
_FLAGS += ["-fno-strict-aliasing", "-fno-math-errno", "-ffp-contract=fast"]


@dataclass(frozen=True)
class Compiler:
    """command: the program and arguments of its own; version: its first line, "g++ (Debian 12.2.0) 12.2.0"."""

    command: tuple[str, ...]
    version: str

    @property
    def major(self) -> int:
        """12 for 12.2.0; 0 where the version does not say."""
        number = re.search(r"(\d+)\.\d+", self.version)
        return int(number[1]) if number else 0

    @property
    def description(self) -> str:
        """For people: "g++ 12", "zig c++ (clang 22)"."""
        if self.is_zig:
            return f"zig c++ (clang {self.major})"
        return f"{Path(self.command[0]).name} {self.major}"

    @property
    def is_zig(self) -> bool:
        return self.command[1:] == ZIG[1:] or self.command[1:] == ("c++",)

    def run(self, arguments: Sequence[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run it to its end; settings: of subprocess.run."""
        environment = _zig_environment() if self.is_zig else None
        command = [*self.command, *arguments]
        return subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, **settings)

    def kernel_flags(self) -> list[str]:
        # C++ lets a compiler drop a loop that does nothing and never ends; a reader's endless loop must stay one.
        loops = ["-fno-finite-loops"] if self.major >= 10 else []
        limit = f"frame-larger-than={LARGEST_FRAME}"
        frame = [f"-W{limit}", "-Werror=frame-larger-than"] if "clang" in self.version else [f"-Werror={limit}"]
        return [*_FLAGS, *frame, *loops, *_native(), f"-I{CPP / 'include'}", f"-I{CPP}"]


def find_compiler() -> Compiler:
    """The compiler that TINY_VLLM_CXX names, else the first of g++, clang++, c++ and the Python package ziglang.

    Raises DeviceError when there is none.
    """
    return _find(os.environ.get("TINY_VLLM_CXX", ""), os.environ.get("PATH", ""))


@lru_cache(maxsize=8)
def _find(chosen: str, path: str) -> Compiler:
    if chosen:
        command = _words(chosen)
        if not command or not shutil.which(command[0], path=path):
            raise DeviceError(f"TINY_VLLM_CXX is {chosen!r}, and there is no such program; name another, or unset it")
        return Compiler(tuple(command), _version(command))
    for name in CANDIDATES:
        if shutil.which(name, path=path):
            return Compiler((name,), _version([name]))
    if importlib.util.find_spec("ziglang"):
        return Compiler(ZIG, _version(ZIG))
    raise DeviceError(
        "no C++ compiler found: install g++ (apt install g++), or pip install ziglang, or set TINY_VLLM_CXX"
    )


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quotation mark that nothing closes
        return []


def _version(command: Sequence[str]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"the C++ compiler {command[0]} does not run: {error}; set TINY_VLLM_CXX") from None
    return (done.stdout or done.stderr).partition("\n")[0].strip()


def _zig_environment() -> dict[str, str]:
    """Zig builds the C++ library that it links with and keeps it: beside our kernels, as a home may be read-only."""
    folder = Path(os.environ.get("ZIG_GLOBAL_CACHE_DIR") or writable_folder(cache_root() / "zig"))
    if not folder.is_dir() or not any(folder.iterdir()):
        print("tiny-vllm: zig builds its C++ library first, once: a minute or two", file=sys.stderr, flush=True)
    return {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(folder)}


def _native() -> list[str]:
    """The flag for "all that this CPU can do". Apple's compiler does so by itself on its own chips (not tried)."""
    if platform.machine() in ("x86_64", "AMD64"):
        return ["-march=native"]
    return [] if platform.system() == "Darwin" else ["-mcpu=native"]


@lru_cache(maxsize=1)
def cpu_fingerprint() -> str:
    """What this CPU can do: code compiled for one must not run on another that shares the cache."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    features = re.search(r"^(?:flags|Features)\s*:.*$", text, re.MULTILINE)
    name = re.search(r"^(?:model name|CPU part)\s*:.*$", text, re.MULTILINE)
    return " ".join([platform.machine(), *(match[0] for match in (name, features) if match)])


@lru_cache(maxsize=1)
def header_digest() -> str:
    """Of every header that a kernel can include: a changed header must not run stale code."""
    digest = hashlib.sha256()
    for path in sorted(CPP.rglob("*.h")):
        digest.update(path.relative_to(CPP).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
