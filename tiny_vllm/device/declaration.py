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
    "__nv_bfloat16": ml_dtypes.bfloat16,
    "nv_bfloat16": ml_dtypes.bfloat16,
    "bool": np.bool_,
    "char": np.int8,
    "signed char": np.int8,
    "int8_t": np.int8,
    "unsigned char": np.uint8,
    "uint8_t": np.uint8,
    "short": np.int16,
    "short int": np.int16,
    "int16_t": np.int16,
    "unsigned short": np.uint16,
    "unsigned short int": np.uint16,
    "uint16_t": np.uint16,
    "int": np.int32,
    "signed": np.int32,
    "signed int": np.int32,
    "int32_t": np.int32,
    "unsigned": np.uint32,
    "unsigned int": np.uint32,
    "uint32_t": np.uint32,
    "long": np.int64,
    "long int": np.int64,
    "long long": np.int64,
    "long long int": np.int64,
    "int64_t": np.int64,
    "ptrdiff_t": np.int64,
    "unsigned long": np.uint64,
    "unsigned long int": np.uint64,
    "unsigned long long": np.uint64,
    "unsigned long long int": np.uint64,
    "uint64_t": np.uint64,
    "size_t": np.uint64,
}
_VECTOR = re.compile(r"(float|double|u?int|short|char)[234]|(?:__)?(half|nv_bfloat16)2")
_TYPE_WORDS = {*re.findall(r"\w+", " ".join(_TYPES)), "void", "const", "volatile"}
_QUALIFIERS = re.compile(r"\b(?:const|volatile|struct|__restrict__|__restrict|__grid_constant__|std::)\b|\bstd::")
_ALIAS = re.compile(
    r"\busing\s+(\w+)\s*=\s*([^;]+);"
    r"|\btypedef\s+([\w:\s*]+?)\s*\b(\w+)\s*;"
    r"|^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w: \t]+?)[ \t]*$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    type is its text ("const scalar_t*"); dtype that of the elements behind a pointer, or of the value itself; None
    where any will do: `void*`, a template's T, a struct. A pointer to pointers takes an array of addresses, uint64.
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
    found = [tuple(_parameter(part, aliases) for part in parts) for each, parts in _declarations(text) if each == base]
    if not found:
        have = ", ".join(kernel_names(code)) or "none"
        raise KernelError(f"there is no kernel {base} in this source; its __global__ functions: {have}")
    if len({tuple(parameter.type for parameter in parameters) for parameters in found}) > 1:
        raise KernelError(f"kernel {base} is declared twice with different parameters; give one of them another name")
    return found[-1]  # a definition comes after what declares it ahead, which need not name its parameters


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
            if not re.fullmatch(r"__\w+__", head[1]):  # __launch_bounds__ and its kin
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
    """Parameter texts without their default values, split at the commas that no bracket holds."""
    parts, depth, in_default = [""], 0, False
    for char in text:
        if not (in_default and char in "<>"):  # there they compare
            depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
            in_default = False
        elif char == "=" and depth == 0:
            in_default = True
        elif not in_default:
            parts[-1] += char
    parts = [" ".join(part.split()) for part in parts]
    return [] if parts in ([""], ["void"]) else parts


def _parameter(text: str, aliases: Mapping[str, str]) -> Parameter:
    declaration, _, array = text.partition("[")
    kind, name = _type_and_name(declaration.strip(), aliases)
    kind = re.sub(r"\s*\b__restrict(?:__)?\b\s*", " ", kind) + ("*" if array else "")
    kind = re.sub(r"\s*\*\s*", "*", " ".join(kind.split()))
    target, _, _ = kind.partition("*")
    base, depth = _resolve(target, aliases)
    depth += kind.count("*")
    const = re.search(r"\bconst\b", target) is not None
    return Parameter(name, kind, depth > 0, const, _dtype(base, depth))


def _type_and_name(declaration: str, aliases: Mapping[str, str]) -> tuple[str, str]:
    """ "const float* x" -> ("const float*", "x"); C++ lets the name go."""
    match = re.fullmatch(r"(.*[\s*])(\w+)", declaration)
    if match is not None and match[2] not in _TYPE_WORDS and "(" not in declaration:
        return match[1], match[2]
    last = re.search(r"\w+$|\*$", declaration)
    if "(" in declaration or last is None or last[0] not in {"*", *_TYPE_WORDS, *aliases}:
        raise KernelError(f"the parameter {declaration!r} is no type with a name; write both out, without a macro")
    return declaration, "unnamed"


def _resolve(kind: str, aliases: Mapping[str, str]) -> tuple[str, int]:
    """A type without qualifiers, its aliases followed, and how many of them are pointers."""
    for _ in range(8):
        kind = " ".join(_QUALIFIERS.sub(" ", kind).split())
        if kind not in aliases:
            break
        kind = aliases[kind]
    return " ".join(kind.replace("*", " ").split()), kind.count("*")


def _dtype(base: str, depth: int) -> np.dtype | None:
    """depth: how many pointers lead to the base type."""
    if depth > 1:
        return np.dtype(np.uint64)
    vector = _VECTOR.fullmatch(base)
    if vector and depth:  # `float4*` is a way to read float32 by 16 bytes
        base = (vector[1] or vector[2]).replace("uint", "unsigned")
    return np.dtype(_TYPES[base]) if base in _TYPES else None
