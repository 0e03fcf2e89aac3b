"""Where a checked launch's arrays lie: copies in one arena, each with a gap of its own size before and behind it."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiny_vllm.device.emulator.arguments import address
from tiny_vllm.device.emulator.check.poison import is_poisoned
from tiny_vllm.device.emulator.isolate import merge
from tiny_vllm.device.signature import Parameter
from tiny_vllm.errors import DeviceError

LEAST_GAP = 1 << 20  # bytes behind an array; a larger array has a gap of its own size
WORD_BYTES = 24  # struct Word of cpp/check/words.h
KEPT_BYTES = 32 << 20
LAST_EPOCH = 1 << 31
ALIGNMENT = 16  # what a NumPy array's memory has; what is beyond, a launch's arena gives
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)

# struct Region and struct View of cpp/check/state.h
_REGION, _VIEW = struct.Struct("@QQIIHHI"), struct.Struct("@QQQQIi")


class Room:
    """Memory for an arena and its shadow. Pages exist once they are touched.

    epoch: launches count on from it, so that what earlier ones left in the shadow is known as theirs.
    """

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 1
        self.memory, self.begin = _map(size)
        self._shadow, self.shadow = _map((size // 4 + 1) * WORD_BYTES)


def _map(size: int) -> tuple[mmap.mmap, int]:
    try:
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except OSError as error:
        raise DeviceError(f"check mode wants {size >> 20} MiB of address space: {error}; raise ulimit -v") from None
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


_kept: list[Room] = []  # at most one: pages that exist already save half of a short launch's time


def take_room(size: int, used: int) -> Room:
    """Room for an arena of that size; used: bytes of arrays in it. Large ones are not kept for the next launch."""
    room = _kept.pop() if _kept else None
    if room is None or room.size < size or room.epoch > LAST_EPOCH:
        room = Room(size)
    if used <= KEPT_BYTES:
        _kept.append(room)
    return room


@dataclass(frozen=True)
class _Span:
    low: int  # in the process's memory
    size: int
    at: int  # in the arena


class Arena:
    """The launch's arrays as copies."""

    def __init__(self, args: Sequence[Any], parameters: Sequence[Parameter]) -> None:
        self._args, self._parameters = args, parameters
        numbers = [i for i, arg in enumerate(args) if isinstance(arg, np.ndarray)]
        bounds = merge([np.lib.array_utils.byte_bounds(args[i]) for i in numbers])
        self._spans, self.slot_bits = _place(bounds)
        self.size = (len(bounds) + 1) << self.slot_bits
        self.room = take_room(self.size, sum(high - low for low, high in bounds))
        self.begin = self.room.begin
        self._numbers = {i: self._span_of(args[i]) for i in numbers}
        for span in self._spans:
            ctypes.memmove(self.begin + span.at, span.low, span.size)

    def arguments(self) -> list[Any]:
        """The launch's arguments, with the copies in the place of the arrays."""
        copies = list(self._args)
        for i, number in self._numbers.items():
            array, span = self._args[i], self._spans[number]
            offset = span.at + address(array) - span.low
            copies[i] = np.ndarray(array.shape, array.dtype, self.room.memory, offset, array.strides)
        return copies

    def tables(self) -> tuple[bytes, int, bytes, int]:
        """Regions and views as cpp/check/state.h has them, and how many of each."""
        regions, views, count = b"", b"", 0
        for number, span in enumerate(self._spans):
            mine = [i for i, its in self._numbers.items() if its == number]
            begin = self.begin + span.at
            whole = any(self._args[i].flags.c_contiguous and self._args[i].nbytes == span.size for i in mine)
            written = any(not self._parameters[i].const for i in mine)
            regions += _REGION.pack(
                begin, begin + span.size, count, len(mine), not whole, written, is_poisoned(span.low, span.size)
            )
            views += b"".join(self._view(i, begin - span.low) for i in mine)
            count += len(mine)
        return regions, len(self._spans), views, count

    def _view(self, i: int, shift: int) -> bytes:
        array = self._args[i]
        low, high = np.lib.array_utils.byte_bounds(array)
        stride = width = max(high - low, 1)
        if not array.flags.c_contiguous:
            stride, width = array.strides[0], array[0].nbytes
        return _VIEW.pack(low + shift, high + shift, stride, width, array.itemsize, i)

    def _span_of(self, array: np.ndarray) -> int:
        low, high = np.lib.array_utils.byte_bounds(array)
        return next(n for n, s in enumerate(self._spans) if s.low <= low and high <= s.low + s.size)

    def copy_back(self) -> None:
        """What the kernel wrote, to the arrays that it may write."""
        for number in {n for i, n in self._numbers.items() if self._args[i].flags.writeable and self._may_write(i)}:
            span = self._spans[number]
            ctypes.memmove(span.low, self.begin + span.at, span.size)

    def _may_write(self, i: int) -> bool:
        return not self._parameters[i].const


def _place(bounds: Sequence[tuple[int, int]]) -> tuple[list[_Span], int]:
    """A slot of 2**bits bytes for each, half of it in front of the array or more, and the rest behind."""
    largest = max((high - low for low, high in bounds), default=0)
    bits = (2 * max(largest, LEAST_GAP) - 1).bit_length() + 1
    middle = 1 << (bits - 2)
    return [
        _Span(low, high - low, (i << bits) + middle + low % ALIGNMENT) for i, (low, high) in enumerate(bounds)
    ], bits
