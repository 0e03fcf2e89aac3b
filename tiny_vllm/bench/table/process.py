"""The parent's side of a contender's process: start, ask, end; whatever goes wrong comes as ContenderError."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

CHILD = "tiny_vllm.bench.table.child"
LOG_BYTES = 20_000  # of the end of a log, in which a reason is looked for
CLOSE_SECONDS, LAST_LINE_SECONDS = 5, 1


class ContenderError(RuntimeError):
    """One line about what a contender could not do. is_dead: its process has ended, or is of no more use."""

    def __init__(self, message: str, is_dead: bool) -> None:
        super().__init__(message)
        self.is_dead = is_dead


class ContenderProcess:
    """A running contender; a context manager. start_seconds: from the process's start to its first token."""

    def __init__(
        self, name: str, settings: dict[str, Any], log: Path, seconds: float, environment: dict[str, str] | None = None
    ) -> None:
        """seconds: that one answer may take, the first one included. environment: added to this process's own."""
        self._log, self._seconds = log, seconds
        self._errors: BinaryIO = log.open("wb")
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", CHILD, name, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})},
            start_new_session=True,  # so that what it starts can be ended with it
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.ready = self._receive()
        except BaseException:
            self.close()
            raise
        self.start_seconds = time.perf_counter() - begin

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to one message."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None
        return self._receive()

    def close(self) -> None:
        """End it, and all that it started."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(OSError, subprocess.TimeoutExpired):
                self._process.stdin.close()
                self._process.wait(CLOSE_SECONDS)
        self._kill()
        self._errors.close()

    def __enter__(self) -> ContenderProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                answer = json.loads(self._lines.get(timeout=0.2))
                break
            except queue.Empty:
                if self._has_ended():
                    raise self._ended() from None
                if time.monotonic() > deadline:
                    raise ContenderError(f"no answer within {self._seconds:g} s", is_dead=True) from None
        if "error" in answer:
            raise ContenderError(answer["error"], is_dead=self._process.poll() is not None)
        return answer

    def _has_ended(self) -> bool:
        """And nothing that it said is still to be read; a helper of its own may hold the pipe open."""
        if self._process.poll() is None:
            return False
        self._reader.join(LAST_LINE_SECONDS)
        return self._lines.empty()

    def _ended(self) -> ContenderError:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        last = self._last_words()
        return ContenderError(f"its process ended with {how}{f': {last}' if last else ''}", is_dead=True)

    def _last_words(self) -> str:
        self._errors.flush()
        lines = self._log.read_bytes()[-LOG_BYTES:].decode(errors="replace").splitlines()
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
