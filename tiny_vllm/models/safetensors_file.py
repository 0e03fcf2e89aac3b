"""Writes a bfloat16 model.safetensors of any size, tensor by tensor.

The `safetensors` library reads all our checkpoints; for writing it wants every tensor in memory at once and sorts
them by name, while a converted or random checkpoint is made in pieces, in the order of the layers.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is made when it is written: its shape, and a function giving its elements in row-major pieces.

    chunks: called once, from any thread; yields bfloat16 arrays that hold the shape's elements one after another.
    """

    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[np.ndarray]]

    @property
    def nbytes(self) -> int:
        return 2 * math.prod(self.shape)


def write_safetensors(
    path: Path,
    tensors: Mapping[str, LazyTensor],
    workers: int = 1,
    on_written: Callable[[int], object] = lambda nbytes: None,
) -> None:
    """Write `tensors` to `path`, in their order; the file appears under its name only when it is whole.

    workers: threads that make tensors at the same time. on_written(nbytes) is called after each tensor.
    The format: 8 bytes of header length, a JSON header with each tensor's place, then the data.
    """
    header, starts = _header(tensors)
    partial = path.with_name(path.name + ".partial")
    pool = ThreadPoolExecutor(workers)
    try:
        partial.write_bytes(header)
        jobs = {pool.submit(_write_tensor, partial, starts[name], t): t for name, t in tensors.items()}
        for job in as_completed(jobs):
            job.result()
            on_written(jobs[job].nbytes)
        os.replace(partial, path)
    finally:  # after an error or Ctrl-C: wait for the tensors in the making only
        pool.shutdown(cancel_futures=True)
        partial.unlink(missing_ok=True)


def _header(tensors: Mapping[str, LazyTensor]) -> tuple[bytes, dict[str, int]]:
    """-> (the file's first bytes, where in the file each tensor starts)."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset, offsets = 0, {}
    for name, tensor in tensors.items():
        offsets[name], end = offset, offset + tensor.nbytes
        entries[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned to 8 bytes
    header = struct.pack("<Q", len(text)) + text
    return header, {name: len(header) + start for name, start in offsets.items()}


def _write_tensor(path: Path, start: int, tensor: LazyTensor) -> None:
    with open(path, "r+b") as file:
        file.seek(start)
        for chunk in tensor.chunks():
            file.write(chunk.tobytes())
        assert file.tell() == start + tensor.nbytes, "the chunks of a tensor must add up to its shape"
