"""Reads a GGUF file: its metadata and its tensors, dequantised to float32.

The PyPI package `gguf` reads every variant, but it would bring `requests` and more to every user, for the one fixed
file that smollm2.py converts once; these lines read the six element types that such a file may hold.

The format (github.com/ggml-org/ggml, docs/gguf.md), little-endian: "GGUF", version, number of tensors, number of
metadata entries; the entries; for each tensor its name, dimensions (the fastest axis first), type and offset; then
the data, aligned.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiny_vllm.errors import UserError

# metadata value types: code -> NumPy's name; two more are not numbers
NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
           10: "<u8", 11: "<i8", 12: "<f8"}  # fmt: skip
FLOAT32, STRING, ARRAY = 6, 8, 9


@dataclass(frozen=True)
class ElementType:
    """How a tensor's elements are stored: blocks of `size` bytes that hold `weights` elements each.

    decode: (blocks, size) uint8 -> (blocks, weights) float32.
    """

    name: str
    weights: int
    size: int
    decode: Callable[[np.ndarray], np.ndarray]


def _float32(blocks: np.ndarray) -> np.ndarray:
    return blocks.view("<f4")


def _float16(blocks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def _bfloat16(blocks: np.ndarray) -> np.ndarray:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _nibbles(blocks: np.ndarray) -> np.ndarray:
    """(blocks, 16) bytes -> (blocks, 32) floats: all the low halves, then all the high halves."""
    return np.concatenate([blocks & 15, blocks >> 4], axis=1).astype(np.float32)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    """float16 scale, 16 bytes of nibbles: scale * (nibble - 8)."""
    return _float16(blocks[:, :2]) * (_nibbles(blocks[:, 2:]) - 8)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    """float16 scale, float16 minimum, 16 bytes of nibbles: scale * nibble + minimum."""
    return _float16(blocks[:, :2]) * _nibbles(blocks[:, 4:]) + _float16(blocks[:, 2:4])


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    """float16 scale, 32 int8: scale * byte."""
    return _float16(blocks[:, :2]) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)


TYPES = {
    0: ElementType("F32", 1, 4, _float32),
    1: ElementType("F16", 1, 2, _float16),
    2: ElementType("Q4_0", 32, 18, _q4_0),
    3: ElementType("Q4_1", 32, 20, _q4_1),
    8: ElementType("Q8_0", 32, 34, _q8_0),
    30: ElementType("BF16", 1, 2, _bfloat16),
}
# The names of the others, for the message that refuses them.
REFUSED = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True)
class GgufTensor:
    """A tensor as stored: shape (rows first, as NumPy's), element type and raw bytes."""

    shape: tuple[int, ...]
    element_type: ElementType
    data: np.ndarray

    def dequantise(self) -> np.ndarray:
        """-> float32, of `shape`."""
        blocks = self.data.reshape(-1, self.element_type.size)
        return self.element_type.decode(blocks).reshape(self.shape)


@dataclass(frozen=True)
class GgufFile:
    """metadata: as in the file, e.g. "llama.block_count" -> 30; tensors: by name, in the file's order."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


class _Cursor:
    """Reads values one after another and refuses to run past the end."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data, self.position = memoryview(data), position

    def take(self, count: int) -> memoryview:
        start, end, size = self.position, self.position + count, len(self.data)
        if end > size:
            raise UserError(f"the GGUF file is cut short: it has {size:,} bytes and needs {end:,}; fetch it again")
        self.position = end
        return self.data[start:end]

    def u32(self) -> int:
        return int(struct.unpack("<I", self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack("<Q", self.take(8))[0])

    def string(self) -> str:
        try:
            return bytes(self.take(self.u64())).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"the GGUF file is damaged: a text before byte {self.position:,} is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array(self.u32(), self.u64())
        return self.numbers(kind, 1)[0]

    def array(self, kind: int, count: int) -> list[Any]:
        if kind == ARRAY:
            raise UserError("the GGUF file holds an array of arrays, which no model needs; it is damaged")
        return [self.string() for _ in range(count)] if kind == STRING else self.numbers(kind, count)

    def numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in NUMBERS:
            raise UserError(f"the GGUF file is damaged: metadata type {kind} at byte {self.position:,} does not exist")
        dtype = np.dtype(NUMBERS[kind])
        array = np.frombuffer(self.take(count * dtype.itemsize), dtype)
        if kind != FLOAT32:
            return array.tolist()
        return [float(str(x)) for x in array]  # a float32's shortest decimal: 1e-05, not 9.99999974e-06


def read_gguf(data: bytes) -> GgufFile:
    """Parse the bytes of a GGUF file; tensors stay as they are until dequantised, and share its memory.

    Raises UserError for a file that is damaged, cut short, or holds an element type that is not read here.
    """
    cursor = _Cursor(data)
    if data[:4] != b"GGUF":
        raise UserError(f"this is no GGUF file: it starts with {bytes(data[:4])!r}, not b'GGUF'")
    cursor.take(4)
    version, num_tensors, num_entries = cursor.u32(), cursor.u64(), cursor.u64()
    if version not in (2, 3):
        raise UserError(f"GGUF version {version} is not read here; versions 2 and 3 are")
    metadata = {}
    for _ in range(num_entries):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.u32())
    places = [_read_place(cursor) for _ in range(num_tensors)]
    base = _align(cursor.position, metadata.get("general.alignment", 32))
    return GgufFile(metadata, {place.name: _read_tensor(data, base, place) for place in places})


@dataclass(frozen=True)
class _Place:
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def _read_place(cursor: _Cursor) -> _Place:
    name = cursor.string()
    dimensions = [cursor.u64() for _ in range(cursor.u32())]
    return _Place(name, tuple(reversed(dimensions)), cursor.u32(), cursor.u64())


def _align(position: int, alignment: Any) -> int:
    if not isinstance(alignment, int) or alignment < 1:
        raise UserError(f"the GGUF file is damaged: general.alignment is {alignment!r}")
    return -(-position // alignment) * alignment


def _read_tensor(data: bytes, base: int, place: _Place) -> GgufTensor:
    if place.kind not in TYPES:
        name = REFUSED.get(place.kind, f"number {place.kind}")
        wanted = ", ".join(t.name for t in TYPES.values())
        raise UserError(f"tensor {place.name} has the element type {name}; only {wanted} are read here")
    element_type, row = TYPES[place.kind], place.shape[-1] if place.shape else 1
    if row % element_type.weights:
        raise UserError(f"tensor {place.name}: rows of {row} are no whole {element_type.name} blocks")
    size = math.prod(place.shape) // element_type.weights * element_type.size
    raw = _Cursor(data, base + place.offset).take(size)
    return GgufTensor(place.shape, element_type, np.frombuffer(raw, np.uint8))
