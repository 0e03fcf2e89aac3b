"""Runs launches under guard: a crash or a passed deadline ends the launch and leaves Python alive (cpp/guard.cpp)."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from functools import lru_cache

from tiny_vllm.device.emulator.build import build_guard
from tiny_vllm.errors import DeviceError, UserError

DEFAULT_TIMEOUT = 60.0  # seconds
PRINTED = 0x100  # a bit of guard_run's result: the kernel's printf wrote something

# The reasons of cpp/launch_record.h, in CUDA's words, and in ours.
TIMEOUT, ILLEGAL_ADDRESS = 4, 5
SENTENCES = {
    1: "unspecified launch failure (CUDA_ERROR_LAUNCH_FAILED): the kernel called __trap()",
    2: "device-side assert triggered (CUDA_ERROR_ASSERT)",
    3: "the threads wait for each other for ever",
    TIMEOUT: "the launch timed out and was terminated (CUDA_ERROR_LAUNCH_TIMEOUT)",
    ILLEGAL_ADDRESS: "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)",
    6: "an integer was divided by zero, which a GPU does not report and answers with any number",
    7: "an illegal instruction was encountered (CUDA_ERROR_ILLEGAL_INSTRUCTION)",
    8: "misaligned address (CUDA_ERROR_MISALIGNED_ADDRESS)",
}


def default_timeout() -> float:
    """Seconds that a launch may take: TINY_VLLM_TIMEOUT, else 60."""
    text = os.environ.get("TINY_VLLM_TIMEOUT", "")
    try:
        seconds = float(text) if text else DEFAULT_TIMEOUT
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UserError(f"TINY_VLLM_TIMEOUT is {text!r}; give the seconds that a launch may take, above 0")
    return seconds


class Guard:
    """Calls kernels, and watches over those that run from a thread of its own, which starts with the first launch."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(build_guard()))
        self._run = self._library.guard_run
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
        # PyDLL keeps the GIL: the launch cannot return, nor its thread end, between the look and the signal.
        self._expire = ctypes.PyDLL(self._library._name).guard_expire
        self._expire.argtypes = (ctypes.c_ulong, ctypes.c_uint64)
        self._expire.restype = None
        self._library.guard_install()
        self._tokens = itertools.count(1)
        self._running: dict[int, tuple[float, int]] = {}  # token -> (deadline, thread)
        self._watcher: threading.Thread | None = None
        self._wake = threading.Event()
        self._soonest = 0.0

    def run(self, function: int, launch: int, timeout: float) -> int:
        """Run the kernel's function on the launch record, both addresses; the reason why it ended, maybe with PRINTED.

        timeout: seconds. The result is 0 for a launch that ended by itself.
        """
        token = next(self._tokens)
        self._running[token] = (time.monotonic() + timeout, threading.get_ident())
        if self._watcher is None or timeout < self._soonest:
            self._watch(timeout)
        try:
            result: int = self._run(function, launch, token)
        finally:
            del self._running[token]
        if result < 0:
            raise DeviceError("no memory for the emulator's stacks (64 MiB of address space a thread); raise ulimit -v")
        return result

    def _watch(self, timeout: float) -> None:
        """Start the watcher, or have it look more often for the sake of a shorter time-out."""
        self._soonest = timeout if self._watcher is None else min(self._soonest, timeout)
        self._wake.set()
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._look, name="emulator watchdog", daemon=True)
            self._watcher.start()

    def _look(self) -> None:
        while True:
            self._wake.wait(min(0.25, self._soonest / 4))
            self._wake.clear()
            now = time.monotonic()
            for token, (deadline, thread) in list(self._running.items()):
                if deadline < now and token in self._running:
                    self._expire(thread, token)


@lru_cache(maxsize=1)
def guard() -> Guard:
    """The process's guard; made with the first kernel. A forked child makes its own: threads do not survive a fork."""
    return Guard()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=guard.cache_clear)
