"""Compiles a kernel so that each of its loads and stores calls cpp/check, and that the program's lines can be found."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tiny_vllm.device.emulator.build import cached_library
from tiny_vllm.device.emulator.compiler import CPP, find_compiler
from tiny_vllm.device.emulator.translate import reader_files
from tiny_vllm.errors import DeviceError

_NOT_OF_FAST_MODE = ("-O2", "-shared")
# Loads and stores stay where the text has them: none moved out of a loop, none of a float4 taken apart.
_PLAIN = "-O1 -g -fno-omit-frame-pointer -fno-tree-vectorize"
_INSTRUMENTED = "-fsanitize=thread -fsanitize=bounds,alignment,integer-divide-by-zero -DEMULATOR_CHECK -w -c"
_GCC = ("-fno-toplevel-reorder", "-fno-tree-loop-im", "-fno-tree-sra", "--param=tsan-instrument-func-entry-exit=0")
_CLANG = ("-fno-sanitize=local-bounds", "-fsanitize-recover=all", "-fno-sanitize-trap=all")  # zig would trap
_COUNTED = ("-fsanitize-coverage=trace-pc",)
_RUNTIME = "-std=c++17 -O2 -g -fPIC -fno-omit-frame-pointer -fvisibility=hidden -c"
TOOLS = ("nm", "addr2line")


def build_checked(unit: str, flags: Sequence[str], count: bool) -> Path:
    """The shared library of a kernel's translation unit, instrumented; with count, counters too.

    Raises CompileError, and DeviceError where a tool is missing.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise DeviceError(
            f"check mode reads names and line numbers with {' and '.join(missing)}, which this machine lacks; "
            "install binutils (apt install binutils), or leave check out"
        )
    compiler = find_compiler()
    kept = [flag for flag in compiler.kernel_flags() if flag not in _NOT_OF_FAST_MODE]
    own = [*_PLAIN.split(), *_INSTRUMENTED.split(), *(_COUNTED if count else ())]
    own += _CLANG if "clang" in compiler.version else _GCC
    # Two steps: a link with -fsanitize would bring the sanitizers' own libraries.
    return cached_library(compiler, unit, [*kept, *own, *flags], reader_files(unit), link=[str(_runtime())])


def _runtime() -> Path:
    """The object file of cpp/check/runtime.cpp."""
    text = (CPP / "check" / "runtime.cpp").read_text(encoding="utf-8")
    return cached_library(find_compiler(), text, [*_RUNTIME.split(), f"-I{CPP / 'check'}"], {})
