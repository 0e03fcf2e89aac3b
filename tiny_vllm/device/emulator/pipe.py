"""What the parent and the child of isolate.py say to each other: pickles with their length in front."""

from __future__ import annotations

import os
import pickle
import select
import struct
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class View:
    """An array as a part of a span."""

    span: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype


def send(pipe: Any, message: Any) -> None:
    data = pickle.dumps(message, protocol=5)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def receive(pipe: Any, deadline: float = float("inf")) -> Any:
    """The next message. Raises EOFError at the end of the pipe and TimeoutError past the deadline."""
    (size,) = _LENGTH.unpack(_read(pipe.fileno(), _LENGTH.size, deadline))
    return pickle.loads(_read(pipe.fileno(), size, deadline))


def _read(file: int, size: int, deadline: float) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        wait = None if deadline == float("inf") else max(deadline - time.monotonic(), 0.0)
        if not select.select([file], [], [], wait)[0]:
            raise TimeoutError
        part = os.read(file, min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
