"""A table of words and some arrays as bytes: a line of JSON, then the arrays' own bytes. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tiny_vllm.device.source import as_dtype


def pack(words: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The message; words: what JSON holds."""
    described = {name: [array.dtype.name, array.shape] for name, array in arrays.items()}
    text = json.dumps({**words, "arrays": described}).encode()
    return b"".join([text, b"\n", *(array.tobytes() for array in arrays.values())])


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(words, arrays), views of the message. ValueError, TypeError, KeyError and their like for what is no message."""
    cut = message.index(b"\n")
    words, data = json.loads(message[:cut]), memoryview(message)[cut + 1 :]
    arrays, begin = {}, 0
    for name, (dtype, shape) in words.pop("arrays").items():
        end = begin + int(np.prod(shape, dtype=np.int64)) * as_dtype(dtype).itemsize
        arrays[name] = np.frombuffer(data[begin:end], as_dtype(dtype)).reshape(shape)
        begin = end
    return words, arrays
