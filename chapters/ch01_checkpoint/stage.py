"""A safetensors file, read by hand.

First 8 bytes: the length of the header, little-endian. Then the header in JSON, an entry a tensor:
{"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}. Then the tensors' bytes, row-major;
data_offsets count from where the header ends.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from tiny_vllm.errors import UserError


def read_header(path: str | Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file without its metadata, and the place in the file where the tensors begin."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def bf16_to_float32(bits: np.ndarray) -> np.ndarray:
    """bfloat16 values, given as uint16, in float32: exact, since a bfloat16 is the upper half of a float32."""
    values = np.full(bits.shape, np.nan, np.float32)
    # EXERCISE-BEGIN 1.2 (about 2 lines): put the 16 bits where they belong in 32, and see them as float32
    wide = bits.astype(np.uint32) << 16
    values = wide.view(np.float32)
    # EXERCISE-END 1.2
    return values


def read_tensor(path: str | Path, name: str) -> np.ndarray:
    """One tensor of a safetensors file as float32; BF16, F16 and F32 are read. UserError if there is no such tensor."""
    header, first = read_header(path)
    if name not in header:
        raise UserError(f"{path} has no tensor {name!r}; it has {', '.join(sorted(header))}")
    dtype, shape = header[name]["dtype"], header[name]["shape"]
    stored = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}.get(dtype)
    if stored is None:
        raise UserError(f"{name} is stored as {dtype}; this reader knows BF16, F16 and F32")
    raw = bytes(math.prod(shape) * np.dtype(stored).itemsize)  # zeros, until they are read
    # EXERCISE-BEGIN 1.3 (about 4 lines): read this tensor's bytes, and no others
    begin, end = header[name]["data_offsets"]
    with open(path, "rb") as file:
        file.seek(first + begin)
        raw = file.read(end - begin)
    # EXERCISE-END 1.3
    values = np.frombuffer(raw, stored)
    values = bf16_to_float32(values) if dtype == "BF16" else values.astype(np.float32)
    return values.reshape(shape)
