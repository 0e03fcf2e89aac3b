"""From a .cu text to a C++ translation unit, and what can be told from the text alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tiny_vllm.device.source import strip_comments

_ALIGNMENT = r"(?:(?:__align__|alignas)\s*\([^()]*\)\s*)?"
_DYNAMIC_SHARED = re.compile(
    rf"\b(?:extern\s+{_ALIGNMENT}__shared__|__shared__\s+extern)\s+{_ALIGNMENT}"
    rf"((?:[\w:]|<[^;<>]*>|\s)+?)\s+{_ALIGNMENT}(\w+)\s*\[\s*\]((?:\s*\[[^;\[\]]*\])*)\s*;"
)
_STATIC_SHARED = re.compile(r"\bstatic(\s+__shared__)\b")  # our __shared__ says static itself
_GLOBAL_VARIABLE = re.compile(r"\b(?:__device__|__managed__)\b([^;={}()]*)[;={]")
_LINE = re.compile(r'[ \t]*#[ \t]*line[ \t]+(\d+)[ \t]+"([^"]*)"')


def translation_unit(code: str, kernels: Sequence[str], file: str) -> str:
    """The text for the host's compiler: our header, the kernel's text, an entry for each kernel.

    The text stays as it is, line for line, but for one thing that C++ cannot say: dynamic shared memory
    (`extern __shared__ T s[];`) becomes a pointer to it.
    """
    body = _DYNAMIC_SHARED.sub(r"\1 (*\2)\3 = (\1 (*)\3)emulator::dynamic_shared;", code)
    body = _STATIC_SHARED.sub(r"\1", body)
    start = "" if _LINE.match(code) else f'#line 1 "{file}"\n'
    entries = "\n".join(f"EMULATOR_KERNEL({i}, {name})" for i, name in enumerate(kernels))
    return f'#include "cuda_emulator.h"\n{start}{body}\n#line 1 "emulator entries"\n{entries}\nEMULATOR_MODULE()\n'


def callable_kernels(text: str, names: Sequence[str]) -> list[str]:
    """Those of a text's kernels that CUDA can find by their plain name: the `extern "C"` ones."""
    clean = strip_comments(text)
    if re.search(r'\bextern\s+"C"\s*\{', clean):
        return [name for name in names if not _is_template(clean, name)]
    return [name for name in names if re.search(_extern_c(name), clean)]


def has_conditional_kernels(code: str) -> bool:
    """Whether some kernel stands between #if and #endif, so that only the preprocessor knows which there are."""
    depth = 0
    for line in strip_comments(code).split("\n"):
        if match := re.match(r"\s*#\s*(if|endif)", line):
            depth += 1 if match[1] == "if" else -1
        elif depth > 0 and "__global__" in line:
            return True
    return False


def _extern_c(name: str) -> str:
    return rf'extern\s+"C"[^;{{}}]*?\b{re.escape(name)}\s*\('


def _is_template(text: str, name: str) -> bool:
    return re.search(rf"template\s*<[^;{{}}]*?>[^;{{}}]*?\b{re.escape(name)}\s*\(", text) is not None


def has_mutable_globals(code: str) -> bool:
    """Whether the text has `__device__` variables: every block must then see the same copy of the module."""
    text = re.sub(_ALIGNMENT[:-1], " ", strip_comments(code))
    found = _GLOBAL_VARIABLE.findall(text)
    return any(not re.search(r"\b(?:const|constexpr|__constant__|operator|struct|class)\b", each) for each in found)


def reader_files(unit: str) -> dict[str, str]:
    """The files that the #line directives of a unit name, as far as the unit shows them.

    A compiler quotes the line that an error is in from the file of that name: it is given these.
    """
    files: dict[str, dict[int, str]] = {}
    current: dict[int, str] = {}
    number = 0
    for line in unit.split("\n"):
        if match := _LINE.match(line):
            current, number = files.setdefault(match[2], {}), int(match[1])
        else:
            current[number] = line
            number += 1
    return {name: _lines(lines) for name, lines in files.items()}


def _lines(lines: dict[int, str]) -> str:
    return "\n".join(lines.get(number, "") for number in range(1, max(lines, default=0) + 1)) + "\n"
