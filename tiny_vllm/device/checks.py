"""What a launcher checks before it launches: a kernel believes the numbers that it is given."""

from __future__ import annotations

from tiny_vllm.errors import UserError
from tiny_vllm.types import Array


def check_shape(what: str, array: Array, wanted: tuple[int, ...]) -> None:
    """UserError unless the array has the wanted shape. what: "rms_norm: weight"."""
    if array.shape != wanted:
        raise UserError(f"{what} has shape {array.shape}; wanted {wanted}")


def row_stride(array: Array) -> int:
    """How many elements lie between the starts of two rows: what a kernel takes as q_stride."""
    return int(array.strides[0] // array.itemsize)
