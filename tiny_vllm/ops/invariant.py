"""Batch-invariant mode: a row's result has the same bits whatever rows are computed beside it.

See docs/batch_invariance.md; the idea is He et al., "Defeating Nondeterminism in LLM Inference" (2025).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.device.checks import check_shape
from tiny_vllm.device.source import as_dtype
from tiny_vllm.errors import UserError
from tiny_vllm.ops.invariant_mma import MmaProduct, what_is_missing
from tiny_vllm.ops.tuned import TunedOps
from tiny_vllm.types import Array

SIDE = 16  # of linear.cu, as what follows: threads of a block in x and in y
SHORT_ROWS = SIDE  # linear_short is for so many rows at most
SHORT_TILE, TALL_TILE = (SIDE, 2 * SIDE), (4 * SIDE, 4 * SIDE)  # rows and columns of out, for each block


class InvariantOps(TunedOps):
    """TunedOps with one product and one attention, kernels/attention.cu, for steps of any shape.

    The other kernels take each row by itself already, in blocks whose size the step does not change.
    product: "mma" runs kernels/linear_mma.cu, on tensor cores, "plain" kernels/linear.cu; "auto" runs the former on a
    GPU where it holds. Which of them depends on the weight, and on nothing of the step.
    """

    name: ClassVar[str] = "invariant"

    def __init__(
        self, device: Device, config: Any, dtype: Any, product: Literal["auto", "plain", "mma"] = "auto"
    ) -> None:
        # The paged kernels split a context by the batch size; attention.cu has its tiles at fixed positions.
        super().__init__(device, config, dtype, attention="plain")
        missing = what_is_missing(device, dtype)
        if product == "mma" and missing:
            raise UserError(f"product='mma' does not hold here: {missing}; leave product at 'auto'")
        plain = product == "plain" or missing or (product == "auto" and device.name == "emulator")
        self._mma = None if plain else MmaProduct(device, dtype)

    def linear(self, x: Array, weight: Array, out: Array | None = None, add: bool = False) -> Array:
        """x (T,K) @ weight (N,K) transposed -> out (T,N), of the element type or float32; both rows contiguous."""
        (rows, inner), columns = x.shape, len(weight)
        check_shape("linear: weight", weight, (columns, inner))
        if add and out is None:
            raise UserError("linear: add=True adds to out; give the array")
        out = self._out("linear", out, (rows, columns))
        if self._mma is not None and self._mma.holds(weight):
            self._mma(x, weight, out, add)
            return out
        name, (height, width) = ("linear_short", SHORT_TILE) if rows <= SHORT_ROWS else ("linear", TALL_TILE)
        if as_dtype(out.dtype) == np.float32:
            name += "_float"
        grid = (-(-columns // width), -(-rows // height))
        if all(grid):
            kernel = self._library.kernel("linear.cu", name)
            kernel(grid, (SIDE, SIDE), (x, weight, out, rows, columns, inner, int(add)))
        return out
