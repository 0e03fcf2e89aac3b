"""How much static shared memory a kernel has, from the symbols of its library."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

_SYMBOL = re.compile(r"^([0-9a-f]+) ([0-9a-f]+) [bBdD] (.+)::(?!emulator_gap_)\w+(?: \[.*\])?$", re.MULTILINE)
_END = re.compile(r"^([0-9a-f]+) \w __(start|stop)_emu_shared$", re.MULTILINE)


def static_shared_bytes(library: Path, section: int, kernel: str, kernels: Sequence[str], gaps: bool = False) -> int:
    """Bytes of `__shared__` arrays that the kernel has for itself.

    section: bytes of all of the module's arrays, which lie together; gaps: with check mode's gaps between them. In a
    module of several kernels the linker's symbols say whose they are; arrays of functions that are no
    kernels count for each. Without `nm` (and for arrays in templates, which g++ 12 puts elsewhere) the answer is too
    small: a kernel that CUDA refuses may then run here.
    """
    if section == 0 or (len(kernels) == 1 and not gaps):
        return section
    others = {_base(name) for name in kernels} - {_base(kernel)}
    return sum(size for owner, size in _symbols(library) if owner not in others)


def _base(name: str) -> str:
    """ "void a::gemm<float>(float*)" -> "gemm"."""
    return re.split(r"[<(]", name)[0].split()[-1].rpartition("::")[2]


@lru_cache(maxsize=64)
def _symbols(library: Path) -> list[tuple[str, int]]:
    """(function, bytes) of each array in the section of shared memory."""
    tool = shutil.which("nm")
    if tool is None:
        return []
    text = subprocess.run([tool, "-SC", str(library)], capture_output=True, text=True).stdout
    ends = {name: int(at, 16) for at, name in _END.findall(text)}
    if len(ends) != 2:
        return []
    found = ((int(at, 16), int(size, 16), owner) for at, size, owner in _SYMBOL.findall(text))
    return [(_base(owner), size) for at, size, owner in found if ends["start"] <= at < ends["stop"]]
