"""From checked arguments to the bytes that a compiled kernel reads."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from tiny_vllm.device.signature import Parameter

_BFLOAT16 = "E"  # beside struct's own letters


def complete(parameters: Sequence[Parameter], codes: Sequence[str]) -> list[Parameter]:
    """The parameters, with the element types that only the compiler knows (a template's T)."""
    assert len(parameters) == len(codes), (parameters, codes)
    pairs = zip(parameters, codes, strict=True)
    return [replace(each, dtype=_dtype(code)) if each.dtype is None else each for each, code in pairs]


def _dtype(code: str) -> np.dtype | None:
    letter = code.lstrip("*")
    if letter == _BFLOAT16:
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(letter) if len(letter) == 1 and letter != "v" else None


class Packer:
    """Lays a launch's arguments into one buffer, each at a multiple of 8 bytes (16 for a struct)."""

    def __init__(self, codes: Sequence[str], kernel: str = "kernel") -> None:
        """codes: the parameters' types as cpp/entry.h describes them."""
        self.offsets: list[int] = []
        layout = "<"
        self.size = 0
        for code in codes:
            item = "Q" if code.startswith("*") else "H" if code == _BFLOAT16 else code
            align = 16 if item.endswith("s") else 8
            gap = -self.size % align
            self.offsets.append(self.size + gap)
            layout += f"{gap}x" + item
            self.size = self.offsets[-1] + struct.calcsize("<" + item)
        self._struct = struct.Struct(layout)
        self._converters = [_converter(code, f"{kernel}: argument {i}") for i, code in enumerate(codes, 1)]

    def pack(self, args: Sequence[Any]) -> bytes:
        """The values of checked arguments: an array's address, a scalar's own bytes."""
        return self._struct.pack(*[convert(arg) for convert, arg in zip(self._converters, args)])


def _converter(code: str, where: str) -> Callable[[Any], Any]:
    if code.startswith("*"):
        return address
    if code == _BFLOAT16:
        return lambda value: int(value.view(np.uint16))
    if code.endswith("s"):
        size = int(code[:-1])

        def convert(value: Any) -> bytes:
            data: bytes = value.tobytes()
            if len(data) != size:
                raise TypeError(f"{where}: got {len(data)} bytes, wanted a NumPy scalar of the struct's {size}")
            return data

        return convert
    return float if code in "efd" else bool if code == "?" else int


def _address_by_interface(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _address_by_layout(array: np.ndarray) -> int:
    """The first field behind an array's object header, read directly: an eighth of the interface's time."""
    return _pointer_at(id(array) + object.__basicsize__).value or 0


_pointer_at = ctypes.c_void_p.from_address
_samples = (np.zeros(3), np.zeros((4, 5), np.int8)[2:, 1:])
_layout_holds = all(_address_by_layout(each) == _address_by_interface(each) for each in _samples)
address = _address_by_layout if _layout_holds else _address_by_interface
