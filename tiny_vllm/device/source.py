"""One way to read a .cu file, for CuPy, the emulator and the NVRTC gate: the same text, the same options.

A file is looked for along an overlay, `work/` -> `chapters/` -> `kernels/`: a student's file stands in for ours.
Our own headers are inlined: CuPy's disk cache knows a kernel by its text and its options only, and a header that
changed beside an unchanged .cu would run stale code.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tiny_vllm.cache import expanded
from tiny_vllm.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]

LEFT_OUT = "LEFT_OUT"
COMMON_OPTIONS = ("-std=c++17",)  # what every compiler of ours is given
SCALARS = {
    np.dtype(np.float32): "float",
    np.dtype(ml_dtypes.bfloat16): "__nv_bfloat16",
    np.dtype(np.float16): "__half",
}

_INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"')
_PRAGMA_ONCE = re.compile(r"\s*#\s*pragma\s+once\b")
_COMMENT_OR_STRING = re.compile(
    r"""//(?:\\\n|[^\n])*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""",  # a backslash carries // on
    re.DOTALL,
)
_UNSOLVED = re.compile(r"// EXERCISE-BEGIN (\d+\.\d+)[^\n]*\n(?:[ \t]*(?://[^\n]*)?\n)*?[ \t]*// EXERCISE-END \1")
_REQUIRES = re.compile(r"\brequires:\s*sm_(\d+)")
_REQUIRES_ALONE = re.compile(r"\brequires:\s*sm_(\d+a)\b")
_FIRST_LINE = re.compile(r'#line 1 "([^"\n]+)"')


def checkout_root() -> Path | None:
    """The folder of the checkout that this package runs from; None when it was installed."""
    root = PACKAGE.parent
    # Another package may be called `kernels`: the folder alone is no proof.
    return root if (root / "kernels").is_dir() and (root / "pyproject.toml").is_file() else None


def default_overlay() -> tuple[Path, ...]:
    """Folders that are searched, first hit wins. TINY_VLLM_WORK names another `work/`; UserError when it is none."""
    root, work = checkout_root(), os.environ.get("TINY_VLLM_WORK")
    mine = [expanded(work)] if work else []
    if work and not os.path.isdir(mine[0]):  # else our kernels would run where a student's were meant
        raise UserError(f"TINY_VLLM_WORK is {work!r:.200}, which is no folder; name one, or unset it")
    if root is None:
        return (*mine, PACKAGE / "kernels")
    return (*(mine or [root / "work"]), root / "chapters", root / "kernels")


def load_source(name: str, overlay: Sequence[Path] | None = None) -> str:
    """The text of a .cu file, our headers inlined, ready for RawKernel.

    name: relative to a folder of the overlay, "rms_norm.cu" or "ch03_rms_norm/rms_norm.cu"; or an absolute path.
    The text begins with a #line that gives compilers the reader's own file and line. Raises UserError when the file
    or a header is missing, or when headers include each other.
    """
    folders = tuple(Path(folder) for folder in overlay) if overlay is not None else default_overlay()
    found = _find([name], folders)
    if found is None:
        raise UserError(f"there is no {name} in {_names(folders)}; {_way_out(name, folders)}")
    text = _Inliner(folders).expand(found, ())
    if overlay is None and "TINY_VLLM_WORK" not in os.environ:
        _check_solved(found, text)
    return text


def _check_solved(found: _Found, text: str) -> None:
    """A reader's file with gaps left stands in for ours nowhere but where the course asks for it (TINY_VLLM_WORK)."""
    if found.label.startswith("work/") and (gap := _UNSOLVED.search(text)):
        raise UserError(
            f"{found.label}: exercise {gap[1]} is not solved yet, and the file would stand in for ours; "
            "run `tiny-vllm generate --mine work/`, which fills gaps, or move the file away"
        )


def scalar_options(dtype: Any) -> tuple[str, ...]:
    """The options that make `scalar_t` of kernels/dtype.cuh the given element type: float32, bfloat16 or float16."""
    try:
        return (f"-DSCALAR={SCALARS[as_dtype(dtype)]}",)
    except (KeyError, TypeError):
        raise UserError(f"kernels work in float32, bfloat16 or float16, not in {dtype}") from None


def as_dtype(dtype: Any) -> np.dtype:
    """np.dtype, for "bfloat16" by name too."""
    return np.dtype(ml_dtypes.bfloat16) if isinstance(dtype, str) and dtype == "bfloat16" else np.dtype(dtype)


def required_capability(text: str) -> int:
    """The lowest compute capability that a source asks for in a line `requires: sm_80`; 75 when it does not say."""
    return max(map(int, _REQUIRES.findall(text)), default=75)


def only_architecture(text: str) -> str | None:
    """The one architecture that a source compiles for: "90a" by a line `requires: sm_90a`, None without such a line.

    Its instructions are in code for sm_90a alone: not in code for sm_90, and not on any newer GPU.
    """
    found = _REQUIRES_ALONE.search(text)
    return found[1] if found else None


def runs_on(text: str, compute_capability: int) -> bool:
    """Whether a device can run a source: at least what it requires, and exactly 90 for `requires: sm_90a`."""
    only = only_architecture(text)
    return compute_capability >= required_capability(text) and only in (None, f"{compute_capability}a")


def source_label(text: str) -> str:
    """What messages call a text of load_source: "kernels/rms_norm.cu"; "this source" for any other text."""
    found = _FIRST_LINE.match(text)
    return found[1] if found else "this source"


def strip_comments(text: str) -> str:
    """The text with comments blanked, line numbers kept; string literals stay."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found[0] in "\"'" else " " + "\n" * found.count("\n")

    return _COMMENT_OR_STRING.sub(blank, text)


class _Found(NamedTuple):
    path: Path
    folder: str  # of the file, relative to its folder of the overlay
    label: str  # what messages call it: "chapters/ch03_rms_norm/rms_norm.cu"


def _find(names: Sequence[str], folders: Sequence[Path]) -> _Found | None:
    for name in map(posixpath.normpath, names):
        if os.path.isabs(name):
            if Path(name).is_file():
                return _Found(Path(name), posixpath.dirname(name), name)
            continue
        for folder in folders:
            if not name.startswith("..") and (folder / name).is_file():
                return _Found(folder / name, posixpath.dirname(name), f"{folder.name}/{name}")
    return None


def _way_out(name: str, folders: Sequence[Path]) -> str:
    """A release of the course lists in LEFT_OUT the kernels that would show an answer."""
    lists = [folder / LEFT_OUT for folder in folders if (folder / LEFT_OUT).is_file()]
    if any(name in each.read_text(encoding="utf-8").split() for each in lists):
        return "this release leaves it out, since it shows the answer of an exercise: run with --ops reference"
    return "check the name"


def _read(file: _Found) -> str:
    try:
        return file.path.read_text(encoding="utf-8-sig")  # some editors of Windows put a mark in front
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file.label} cannot be read: {error}; save it as UTF-8 text") from None


def _names(folders: Sequence[Path]) -> str:
    return ", ".join(f"{folder.name}/" for folder in folders)


class _Inliner:
    """Expands includes, each header once, as `#pragma once` would."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._seen: set[Path] = set()

    def expand(self, file: _Found, stack: tuple[_Found, ...]) -> str:
        if any(file.path == outer.path for outer in stack):
            circle = " -> ".join(each.label for each in (*stack, file))
            raise UserError(f"headers include each other: {circle}; take one of the includes out")
        if file.path in self._seen:
            return ""
        self._seen.add(file.path)
        text = _read(file)
        lines = [f'#line 1 "{file.label}"']
        for number, (line, code) in enumerate(zip(text.split("\n"), strip_comments(text).split("\n"), strict=True), 1):
            if include := _INCLUDE.match(code):
                header = self._header(include[1], file, number)
                lines.append(self.expand(header, (*stack, file)) + f'\n#line {number + 1} "{file.label}"')
            else:
                # Inlined text is part of the main file, where compilers warn about `#pragma once`.
                lines.append("" if _PRAGMA_ONCE.match(code) else line)
        return "\n".join(lines)

    def _header(self, name: str, file: _Found, number: int) -> _Found:
        """Beside the including file, wherever in the overlay that is, then from the top of the overlay."""
        found = _find([posixpath.join(file.folder, name), name], self._folders)
        if found is None:
            raise UserError(
                f'{file.label}, line {number}: there is no "{name}" beside it or in {_names(self._folders)}; '
                "correct the include"
            )
        return found
