"""Chapter 02's ops and RMSNorm."""

from __future__ import annotations

from typing import Literal

from chapters.ch02_embeddings.stage import THREADS, EmbeddingOps
from tiny_vllm.device.checks import check_shape
from tiny_vllm.errors import UserError
from tiny_vllm.types import Array

SOURCE = "ch03_rms_norm/rms_norm.cu"
MAX_THREADS = 1024


class RMSNormOps(EmbeddingOps):
    """The ops of chapter 03."""

    def rms_norm(
        self,
        x: Array,
        weight: Array,
        eps: float,
        out: Array | None = None,
        rung: Literal["one_thread", "tree", "warp"] = "tree",
        threads: int = THREADS,
    ) -> Array:
        """x / sqrt(mean(x^2) + eps) * weight for each row: x (T,H), weight (H,) -> out (T,H).

        threads: of a block; the tree halves them, so a power of two; the warps want a multiple of 32.
        """
        _check_threads(rung, threads)
        rows, hidden = x.shape
        check_shape("rms_norm: weight", weight, (hidden,))
        out = self.new(out, rows, hidden)
        if rung == "one_thread":
            grid = (-(-rows // threads),)
            self.launch(SOURCE, "rms_norm_one_thread", grid, (threads,), x, weight, out, rows, hidden, eps)
        else:
            self.launch(SOURCE, f"rms_norm_{rung}", (rows,), (threads,), x, weight, out, hidden, eps)
        return out

    def squares_by_thread(self, x: Array, sums: Array) -> Array:
        """What each of N threads adds up of each row: x (T,H) -> sums (T,N) float32."""
        (rows, hidden), threads = x.shape, sums.shape[1]
        check_shape("squares_by_thread: sums", sums, (rows, threads))
        self.launch(SOURCE, "squares_by_thread", (rows,), (threads,), x, sums, hidden)
        return sums


def _check_threads(rung: str, threads: int) -> None:
    if not 1 <= threads <= MAX_THREADS:
        raise UserError(f"threads is {threads}; a block has 1 to {MAX_THREADS}")
    if rung == "tree" and threads & (threads - 1):
        raise UserError(f"threads is {threads}; rms_norm_tree halves them to the end: give a power of two, such as 128")
    if rung == "warp" and threads % 32:
        raise UserError(f"threads is {threads}; rms_norm_warp adds by whole warps: give a multiple of 32, such as 128")
