"""A process that answers messages, for work that may kill it. Both ends are here; messages are bytes on a socket.

What the bytes mean is for others to say. A parent that does not trust its child must not unpickle them.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

_LENGTH = struct.Struct("<Q")
_NO_LIMIT = 1 << 62
_KEPT = re.compile(
    "PATH|HOME|LANG|TMPDIR|LD_LIBRARY_PATH|XDG_CACHE_HOME|VIRTUAL_ENV|PYTHONPATH|PYTHONDONTWRITEBYTECODE"
    r"|(TINY_VLLM_|CUDA|CUPY|NVIDIA|OMP_|OPENBLAS_|MKL_|LC_)\w*"
)
_CAUSES: dict[int, str] = {
    signal.SIGSEGV: "probably an access outside an array",
    signal.SIGBUS: "probably an access outside an array",
    signal.SIGABRT: "probably a write outside an array, which damaged the process's memory",
    signal.SIGFPE: "probably an integer division by zero",
    signal.SIGKILL: "probably for want of memory",
}


class Worker:
    """A child process, started when it is asked something, and again after its death; serve() is its end.

    It has a session of its own, so that Ctrl-C is for the parent, which ends the child with all that this one started.
    Secrets of the environment stay outside; `variables` are added. settings: others of Popen.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], **settings: Any) -> None:
        kept = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
        self._settings = dict(settings, args=command, env={**kept, **variables}, start_new_session=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Nothing, where a process lives."""
        if self._process is None or self._process.poll() is not None:
            self.end()
            self._channel, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(stdin=theirs.fileno(), stdout=theirs.fileno(), **self._settings)

    def ask(self, message: bytes, seconds: float, limit: int = _NO_LIMIT) -> bytes:
        """The answer. No process is left after an error: a late answer would be one to the wrong question.

        Raises TimeoutError after so many seconds, EOFError with the cause of a death, and ValueError for an answer of
        more than `limit` bytes.
        """
        with self._lock:
            self.start()
            try:
                deadline = time.monotonic() + seconds
                self._channel.settimeout(seconds)
                _send(self._channel, message)
                return _receive(self._channel, deadline, limit)
            except (EOFError, ConnectionError):
                raise EOFError(cause_of_death(self.end(grace=5))) from None
            except BaseException:
                self.end()
                raise

    def end(self, grace: float = 0) -> int | None:
        """End the process, whatever it does, and its session. grace: seconds in which it may end by itself."""
        process, self._process = self._process, None
        if process is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
        code = process.poll()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._channel.close()
        return code


def serve(answer: Callable[[bytes], bytes]) -> None:
    """The child's end: answer until the parent is gone. Whatever else is printed goes to standard error."""
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # nothing else may write between the answers
    with suppress(EOFError, ConnectionError):
        while True:
            answered = answer(_receive(channel))
            sys.stdout.flush()
            _send(channel, answered)


def cause_of_death(code: int | None) -> str:
    """A sentence about a process that ended unasked; code: as Popen.returncode has it."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"the process that ran it was ended by {name}, {_CAUSES.get(-code, 'for a reason unknown')}"
    return f"the process that ran it ended with exit code {code}"


def _send(channel: socket.socket, message: bytes) -> None:
    channel.sendall(_LENGTH.pack(len(message)) + message)


def _receive(channel: socket.socket, deadline: float | None = None, limit: int = _NO_LIMIT) -> bytes:
    (size,) = _LENGTH.unpack(_read(channel, _LENGTH.size, deadline))
    if size > limit:
        raise ValueError(f"a message of {size} bytes, above {limit}")
    return _read(channel, size, deadline)


def _read(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        channel.settimeout(deadline and max(deadline - time.monotonic(), 1e-3))
        if not (part := channel.recv(min(size - len(parts), 1 << 20))):
            raise EOFError
        parts += part
    return bytes(parts)
