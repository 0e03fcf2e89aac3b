"""Copies of a compiled module, each a multiprocessor with state of its own, and the OS threads that drive them."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import shutil
import struct
import tempfile
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from tiny_vllm.errors import UserError

# struct Launch of cpp/launch_record.h: the fields that change from launch to launch, then the rest.
SHAPE = struct.Struct("@6IQQ")
RECORD = struct.Struct("@6IQQPPPPPQQ512s")
_ARGS_AND_COUNTER = struct.Struct("@PP")


def default_workers() -> int:
    """OS threads that run blocks side by side: TINY_VLLM_WORKERS, else the CPUs that this process may use."""
    text = os.environ.get("TINY_VLLM_WORKERS", "")
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"TINY_VLLM_WORKERS is {text!r}; give a whole number of at least 1")
    return int(text)


def load_copy(library: Path) -> ctypes.CDLL:
    """Load a library once more, with variables of its own: the loader tells libraries apart by their file.

    It is unloaded when nobody holds it any more: a process may map some 65,000 pieces of memory, and this takes four.
    """
    with tempfile.NamedTemporaryFile(prefix="copy-", suffix=".so", dir=library.parent) as copy:
        shutil.copyfile(library, copy.name)
        loaded = ctypes.CDLL(copy.name)
    # Not at the end of the process, which a thread of ours may still be at work at
    weakref.finalize(loaded, _ctypes.dlclose, loaded._handle).atexit = False
    return loaded


class Lane:
    """One copy's view of one kernel: its two entry points and its launch record."""

    def __init__(self, library: ctypes.CDLL, index: int, plain: bool, args: Sequence[int], counter: int) -> None:
        """args: addresses of the arguments' values; counter: address of the shared number of the next block."""
        entry = getattr(library, f"emulator_{'plain' if plain else 'fibers'}_{index}")
        self._library = library  # an address keeps nothing alive
        self.function = ctypes.cast(entry, ctypes.c_void_p).value or 0
        self.pointers = (ctypes.c_void_p * max(len(args), 1))(*args)
        self._record = bytearray(RECORD.size)
        self._view = (ctypes.c_char * RECORD.size).from_buffer(self._record)
        self.record = ctypes.addressof(self._view)
        _ARGS_AND_COUNTER.pack_into(self._record, SHAPE.size, ctypes.addressof(self.pointers), counter)

    def prepare(self, shape: bytes) -> None:
        self._record[: SHAPE.size] = shape

    @property
    def printed(self) -> str:
        """What the kernel's printf wrote."""
        *_, text, length, _fault, _error = RECORD.unpack(self._record)
        return ctypes.string_at(text, length).decode(errors="replace")

    @property
    def error(self) -> str:
        return str(RECORD.unpack(self._record)[-1].partition(b"\0")[0].decode(errors="replace"))

    @property
    def fault_address(self) -> int:
        return int(RECORD.unpack(self._record)[-2])

    def clear_error(self) -> None:
        self._record[-512:] = bytes(512)


@lru_cache(maxsize=8)
def thread_pool(size: int) -> ThreadPoolExecutor:
    """The threads that help the launching one, shared by all kernels."""
    return ThreadPoolExecutor(size, thread_name_prefix="emulator worker")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=thread_pool.cache_clear)
