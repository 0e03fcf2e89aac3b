"""Where tiny-vllm keeps what it can make again: compiled kernels, converted models.

`platformdirs` knows more systems, but no dependency brings it and three places are all that is needed here.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path


def cache_root() -> Path:
    """The root of all our caches: TINY_VLLM_CACHE, or "tiny-vllm" in the user's cache folder. Creates nothing."""
    chosen = os.environ.get("TINY_VLLM_CACHE")
    if chosen:
        return expanded(chosen).absolute()
    return _user_cache() / "tiny-vllm"


def expanded(path: str) -> Path:
    """The path with a leading ~ made the home folder; where there is no such home it stays, as in a shell."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _user_cache() -> Path:
    try:
        home = Path.home()
    except RuntimeError:  # a container's user without a home: a folder that nobody can make, so that callers fall back
        return Path(os.devnull)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return xdg if xdg.is_absolute() else home / ".cache"  # the XDG specification: a relative path counts as unset


def writable_folder(path: Path) -> Path:
    """`path` itself, made if need be, or a private temporary stand-in where it cannot be written.

    The stand-in lives as long as this process; one warning names it and the way out.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):  # the only sure test: root, quotas and network disks defeat os.access
            return path
    except OSError:
        folder = _temporary_root() / path.name
        folder.mkdir(exist_ok=True)
        return folder


@cache  # once a process: one folder, one warning
def _temporary_root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="tiny-vllm-"))  # mode 0700: nobody else can plant a file in it
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    warnings.warn(
        f"the cache folder {cache_root()} cannot be written; using {root} until this process ends. "
        "Set TINY_VLLM_CACHE to a folder that can be written to keep what is made.",
        stacklevel=3,
    )
    return root
