"""What a kernel declares: the parameters of a `__global__` function, read from the text of its .cu file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np

from tiny_vllm.device.source import strip_comments
from tiny_vllm.errors import KernelError

_TYPES: dict[str, type] = {
    "float": np.float32,
    "double": np.float64,
    "half": np.float16,
    "__half": np.float16,
    "__half2": np.float16,
    "half2": np.float16,
    "__nv_bfloat16": ml_dtypes.bfloat16,
    "nv_bfloat16": ml_dtypes.bfloat16,
    "__nv_bfloat162": ml_dtypes.bfloat16,
    "nv_bfloat162": ml_dtypes.bfloat16,
    "bool": np.bool_,
    "char": np.int8,
    "signed char": np.int8,
    "int8_t": np.int8,
    "unsigned char": np.uint8,
    "uint8_t": np.uint8,
    "short": np.int16,
    "int16_t": np.int16,
    "unsigned short": np.uint16,
    "uint16_t": np.uint16,
    "int": np.int32,
    "signed": np.int32,
    "signed int": np.int32,
    "int32_t": np.int32,
    "unsigned": np.uint32,
    "unsigned int": np.uint32,
    "uint32_t": np.uint32,
    "long": np.int64,
    "long long": np.int64,
    "long long int": np.int64,
    "int64_t": np.int64,
    "ptrdiff_t": np.int64,
    "unsigned long": np.uint64,
    "unsigned long long": np.uint64,
    "unsigned long long int": np.uint64,
    "uint64_t": np.uint64,
    "size_t": np.uint64,
}
_VECTORS = {"float": "float", "double": "double", "int": "int", "uint": "unsigned", "short": "short", "char": "char"}
_QUALIFIERS = re.compile(r"\b(?:const|volatile|struct|__restrict__|__restrict|__grid_constant__|std::)\b|\bstd::")
_ALIAS = re.compile(
    r"\busing\s+(\w+)\s*=\s*([^;]+);"
    r"|\btypedef\s+([\w:\s]+?)\s+(\w+)\s*;"
    r"|^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w: \t]+?)[ \t]*$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    type is its text ("const scalar_t*"); dtype that of the elements behind a pointer, or of the value itself; None
    where any will do: `void*`, a template's T, a struct.
    """

    name: str
    type: str
    pointer: bool
    const: bool
    dtype: np.dtype | None

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


def parse_parameters(code: str, name: str, defines: Mapping[str, str] | Iterable[str] = ()) -> list[Parameter]:
    """The parameters of the kernel called name, a template's arguments aside.

    defines: {"SCALAR": "float"}, or compiler options of which the -D count. Without one, SCALAR is float. Raises
    KernelError when the text has no such kernel, or two that differ.
    """
    return list(_parse(code, name, tuple(sorted(_as_mapping(defines).items()))))


def kernel_names(code: str) -> list[str]:
    """Every `__global__` function of a source, once, in order."""
    return list(dict.fromkeys(name for name, _ in _declarations(strip_comments(code))))


def _as_mapping(defines: Mapping[str, str] | Iterable[str]) -> Mapping[str, str]:
    if isinstance(defines, Mapping):
        return defines
    pairs = (option[2:].partition("=") for option in defines if option.startswith("-D"))
    return {key.strip(): value.strip() or "1" for key, _, value in pairs}


@lru_cache(maxsize=256)
def _parse(code: str, name: str, defines: tuple[tuple[str, str], ...]) -> tuple[Parameter, ...]:
    text = strip_comments(code)
    base = name.partition("<")[0].rpartition("::")[2].strip()
    aliases = {"scalar_t": "SCALAR", "SCALAR": "float"} | _aliases(text) | dict(defines)
    found = {tuple(_parameter(part, aliases) for part in parts) for each, parts in _declarations(text) if each == base}
    if not found:
        have = ", ".join(kernel_names(code)) or "none"
        raise KernelError(f"there is no kernel {base} in this source; its __global__ functions: {have}")
    if len(found) > 1:
        raise KernelError(f"kernel {base} is declared twice with different parameters; give one of them another name")
    return found.pop()


def _aliases(text: str) -> dict[str, str]:
    """using, typedef and #define, the first of each name (a later one stands in an #else)."""
    found: dict[str, str] = {}
    for using, its, old, new, macro, value in _ALIAS.findall(text):
        found.setdefault(using or new or macro, its or old or value)
    return found


def _declarations(text: str) -> Iterable[tuple[str, list[str]]]:
    """(name, parameter texts) of each `__global__` function."""
    for match in re.finditer(r"\b__global__\b", text):
        at = match.end()
        while head := re.compile(r"[^(){};]*?(\w+)\s*\(").match(text, at):
            end = _closing(text, head.end())
            if head[1] != "__launch_bounds__":
                yield head[1], _split(text[head.end() : end])
                break
            at = end + 1


def _closing(text: str, at: int) -> int:
    """Where the parenthesis that was opened before `at` closes."""
    depth = 1
    for index in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return len(text)


def _split(text: str) -> list[str]:
    """Parameter texts, split at the commas that no bracket holds."""
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    parts = [" ".join(part.split()) for part in parts]
    return [] if parts in ([""], ["void"]) else parts


def _parameter(text: str, aliases: Mapping[str, str]) -> Parameter:
    declaration, _, array = text.partition("[")
    match = re.match(r"(.*?)(\w+)\s*$", declaration)
    assert match is not None, text
    kind = re.sub(r"\s*\b__restrict(?:__)?\b\s*", " ", match[1]) + ("*" if array else "")
    kind = re.sub(r"\s*\*\s*", "*", " ".join(kind.split()))
    target, pointer, _ = kind.partition("*")
    base, alias_pointer = _resolve(target, aliases)
    is_pointer = bool(pointer or alias_pointer)
    const = re.search(r"\bconst\b", target) is not None
    return Parameter(match[2], kind, is_pointer, const, _dtype(base, is_pointer))


def _resolve(kind: str, aliases: Mapping[str, str]) -> tuple[str, bool]:
    """A type without qualifiers, its aliases followed, and whether one of them is a pointer."""
    for _ in range(8):
        kind = " ".join(_QUALIFIERS.sub(" ", kind).split())
        if kind not in aliases:
            break
        kind = aliases[kind]
    return kind.replace("*", "").strip(), "*" in kind


def _dtype(base: str, pointer: bool) -> np.dtype | None:
    vector = re.fullmatch(r"(float|double|u?int|short|char)[234]", base)
    if vector and pointer:  # `float4*` is a way to read float32 by 16 bytes
        base = _VECTORS[vector[1]]
    return np.dtype(_TYPES[base]) if base in _TYPES else None
