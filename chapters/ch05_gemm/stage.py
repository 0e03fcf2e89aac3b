"""Chapter 04's ops and the matrix product: our two kernels, and cuBLAS beside them."""

from __future__ import annotations

from typing import Any

from chapters.ch04_rope.stage import RopeOps
from tiny_vllm.device.base import Device
from tiny_vllm.device.checks import check_shape
from tiny_vllm.errors import UserError
from tiny_vllm.types import Array

SOURCE = "ch05_gemm/gemm.cu"
TILE = 16
GEMMS = ("cublas", "tiled", "naive")


class LinearOps(RopeOps):
    """The ops of chapter 05. gemm: whose product `linear` is, "cublas" (the device's own), "tiled" or "naive"."""

    def __init__(self, device: Device, config: Any, dtype: Any, gemm: str = "cublas") -> None:
        if gemm not in GEMMS:
            raise UserError(f"gemm is {gemm!r}; give one of {', '.join(GEMMS)}")
        super().__init__(device, config, dtype)
        self.gemm = gemm

    def linear(self, x: Array, weight: Array, out: Array | None = None, add: bool = False) -> Array:
        """x (T,K) @ weight (N,K) transposed -> out (T,N), of x's type or float32; add: out += that (beta = 1)."""
        (rows, inner), columns = x.shape, weight.shape[0]
        check_shape("linear: weight", weight, (columns, inner))
        if add and out is None:
            raise UserError("linear: add=True adds to out; give the array")
        out = self.new(out, rows, columns)
        if self.gemm == "cublas":
            self.device.gemm(x, weight, out, add)
            return out
        name = f"gemm_{self.gemm}" if out.dtype == x.dtype else f"gemm_{self.gemm}_float"
        grid = -(-columns // TILE), -(-rows // TILE)
        self.launch(SOURCE, name, grid, (TILE, TILE), x, weight, out, rows, columns, inner, int(add))
        return out
