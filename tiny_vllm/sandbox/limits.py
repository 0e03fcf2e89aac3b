"""How much a run may take, and how a process gives up the rest before it runs what it does not trust."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_FILE_LIMIT = 256 << 20  # bytes that one file may grow to
_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000  # flags of unshare(2)


@dataclass(frozen=True)
class Limits:
    """seconds: of one run; launch_seconds: of one launch on the emulator. memory: bytes of address space. processes:
    beside those that the user has. network: False cuts it off where Linux allows."""

    seconds: float = 30.0
    launch_seconds: float = 10.0
    memory: int | None = None
    processes: int | None = None
    network: bool = True

    def restrict(self) -> None:
        """Bind this process, for good."""
        _limit(resource.RLIMIT_FSIZE, _FILE_LIMIT)
        _limit(resource.RLIMIT_CORE, 0)
        if self.memory is not None:
            _limit(resource.RLIMIT_AS, self.memory)
        if self.processes is not None:
            _limit(resource.RLIMIT_NPROC, _threads_of_user() + self.processes)
        if not self.network:
            cut_network()


def cut_network() -> bool:
    """Give up the network, where Linux lets this process; whether that worked."""
    unshare = ctypes.CDLL(None).unshare if sys.platform == "linux" else None
    return unshare is not None and (unshare(_NEW_NETWORK) == 0 or unshare(_NEW_USER | _NEW_NETWORK) == 0)


def _limit(which: int, amount: int) -> None:
    hard = resource.getrlimit(which)[1]
    with suppress(ValueError, OSError):  # macOS refuses some
        resource.setrlimit(which, (amount, amount) if hard == resource.RLIM_INFINITY else (min(amount, hard), hard))


def _threads_of_user() -> int:
    count = 0
    for task in Path("/proc").glob("[0-9]*/task/*"):
        with suppress(OSError):
            count += task.stat().st_uid == os.getuid()
    return count
