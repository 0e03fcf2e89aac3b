"""Compiler options as CuPy takes them (NVRTC's), and what they mean to the host's compiler."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tiny_vllm.errors import KernelError

# They change a GPU's code and no result that the emulator promises: its fast functions are as exact as the plain ones.
_GPU_ONLY = re.compile(
    r"--?(use_fast_math|extra-device-vectorization|lineinfo|generate-line-info|default-device"
    r"|device-as-default-execution-space|dlto|G|device-debug)$"
    r"|--?(ftz|prec-div|prec-sqrt|fmad|maxrregcount|ptxas-options)=\S+$"
)
_LONG = re.compile(r"--(define-macro|undefine-macro|include-path)=(.+)$", re.DOTALL)
_SHORT = {"define-macro": "-D", "undefine-macro": "-U", "include-path": "-I"}
_STANDARD = re.compile(r"--?std=(\S+)$")
_STANDARDS = ("c++17", "c++20")


@dataclass(frozen=True)
class Options:
    """flags go to the host's compiler; defines is what the -D among them say."""

    flags: tuple[str, ...]
    defines: dict[str, str]


def parse_options(options: Sequence[str]) -> Options:
    """-D, -U, -I and -std in NVRTC's spellings; options for GPUs only are accepted and change nothing.

    Raises KernelError for any other option, as NVRTC would, and for a standard older than C++17, which the emulator's
    own header needs.
    """
    if isinstance(options, str):
        raise KernelError(f"options is the text {options!r}; give a tuple of texts, ({options!r},)")
    words = iter(options)
    flags = [flag for word in words if (flag := _flag(word, words)) is not None]
    if not any(flag.startswith("-std=") for flag in flags):
        flags.insert(0, "-std=c++17")
    return Options(tuple(flags), _defines(flags))


def _flag(word: str, rest: object) -> str | None:
    if word in ("-D", "-U", "-I"):  # the value stands in the next option
        return word + next(rest, "")  # type: ignore[call-overload]
    if word[:2] in ("-D", "-U", "-I"):
        return word
    if match := _LONG.match(word):
        return _SHORT[match[1]] + match[2]
    if match := _STANDARD.match(word):
        if match[1] in _STANDARDS:
            return f"-std={match[1]}"
        raise KernelError(f"option {word}: the emulator compiles {' or '.join(_STANDARDS)}; leave it out or choose one")
    if _GPU_ONLY.match(word):
        return None
    raise KernelError(f"option {word}: unknown to the emulator; it takes -D, -U, -I, -std and NVRTC's options for GPUs")


def _defines(flags: Sequence[str]) -> dict[str, str]:
    pairs = (flag[2:].partition("=") for flag in flags if flag.startswith("-D"))
    return {name.strip(): value.strip() or "1" for name, _, value in pairs}
