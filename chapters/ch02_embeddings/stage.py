"""The first stage of the staircase: token ids become vectors.

The letters of shapes are those of tiny_vllm/ops/base.py: T tokens, V vocabulary, H hidden size, Hq and Hkv heads of
queries and of keys, D the size of a head.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from tiny_vllm.device.base import Device, Dim
from tiny_vllm.device.checks import check_shape
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.ops.base import Ops
from tiny_vllm.types import Array

SOURCE = "ch02_embeddings/embedding.cu"
THREADS = 128  # of a block, wherever a kernel leaves the choice


class EmbeddingOps(Ops):
    """The ops of chapter 02. Each later chapter derives from the one before it and adds what it builds."""

    name: ClassVar[str] = "course"

    def __init__(self, device: Device, config: Any, dtype: Any) -> None:
        super().__init__(device, config, dtype)
        self._library = KernelLibrary(device, dtype)

    def launch(self, file: str, name: str, grid: Dim, block: Dim, *args: Any) -> None:
        """Run kernel `name` of a chapter's .cu file, or of the one in work/ that stands in; an empty grid runs nothing.

        It is compiled for this set's element type when it is first used.
        """
        if all(grid):
            self._library.kernel(file, name)(grid, block, args)

    def new(self, out: Array | None, *shape: int) -> Array:
        """out, which must have this shape; or a new array where a lesson gave none."""
        if out is None:
            return self.device.empty(shape, self.dtype)
        check_shape("out", out, shape)
        return out

    def embed(
        self,
        tokens: Array,
        table: Array,
        out: Array | None = None,
        rung: Literal["one_thread", "one_block"] = "one_block",
    ) -> Array:
        """Rows of the embedding table: tokens (T,) int32, table (V,H) -> out (T,H). rung: what copies a row."""
        num_tokens, hidden = tokens.shape[0], table.shape[1]
        out = self.new(out, num_tokens, hidden)
        if rung == "one_thread":
            grid = (-(-num_tokens // THREADS),)
            self.launch(SOURCE, "embed_one_thread", grid, (THREADS,), tokens, table, out, num_tokens, hidden)
        else:
            self.launch(SOURCE, "embed", (num_tokens,), (THREADS,), tokens, table, out, hidden)
        return out
