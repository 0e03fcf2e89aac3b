"""Attention on tensor cores: launchers of paged_decode.cu and of the two prefills, and the rules of where they hold."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tiny_vllm.device.base import Device, Kernel
from tiny_vllm.device.checks import row_stride
from tiny_vllm.device.source import as_dtype, load_source, required_capability, runs_on, scalar_options
from tiny_vllm.errors import UserError
from tiny_vllm.types import Array, StepMeta

DECODE, PREFILL, WGMMA = "paged_decode", "paged_prefill", "paged_prefill_wgmma"
BLOCK_SIZE = 16  # tokens in a block of the cache: PAGE of kv_tiles.cuh and paged_decode.cu
HEAD_DIMS = (64, 128)
MAX_GROUP = 8  # query heads a key/value head
WAVE = 128  # CUDA blocks that a GPU runs at one time, about: one on each multiprocessor (A100 108, H100 and H200 132)
MAX_SPLITS = 16


class Block(NamedTuple):
    """A CUDA block of a prefill kernel, as its file says: rows of q, threads, and keys and number of its tiles."""

    rows: int
    threads: int
    keys: int
    slots: int

    def shared_bytes(self, head_dim: int) -> int:
        """Of its rows of q and of its tiles of keys and values."""
        return (self.rows + self.slots * 2 * self.keys) * head_dim * 2


BLOCKS = {  # by kernel and head_dim
    (PREFILL, 64): Block(128, 128, 64, 2),
    (PREFILL, 128): Block(128, 128, 32, 2),
    (WGMMA, 64): Block(128, 256, 128, 2),
    (WGMMA, 128): Block(192, 384, 64, 3),
}


def what_is_missing(device: Device, config: Any, dtype: Any, block_size: int = BLOCK_SIZE) -> str:
    """Why these kernels do not hold here, or "" where they do; kernels/attention.cu, which holds everywhere, stands in.

    The architecture is what the files ask for in `requires: sm_80`.
    """
    needs = max(required_capability(load_source(f"{name}.cu")) for name in (DECODE, PREFILL))
    if device.compute_capability < needs:
        return f"the device is sm_{device.compute_capability}; needed: sm_{needs}"
    if as_dtype(dtype).itemsize != 2:
        return f"the element type is {as_dtype(dtype)}; supported: bfloat16 and float16"
    return wrong_heads(config, block_size)


def wrong_heads(config: Any, block_size: int) -> str:
    """Which of a model's heads or of the cache's blocks no tensor-core attention here is made for, or ""."""
    group = config.num_attention_heads // config.num_key_value_heads
    if config.head_dim not in HEAD_DIMS:
        return f"head_dim is {config.head_dim}; supported: {' and '.join(map(str, HEAD_DIMS))}"
    if group > MAX_GROUP:
        return f"{group} query heads share a key/value head; supported: up to {MAX_GROUP}"
    if block_size != BLOCK_SIZE:
        return f"block_size is {block_size}; supported: {BLOCK_SIZE}"
    return ""


def plan_decode(num_requests: int, num_kv_heads: int, head_dim: int, table_width: int) -> tuple[int, int]:
    """(warps of a block, splits of a context), by the shapes alone, so that a captured graph can hold the choice.

    While (request, key/value head) pairs are fewer than a GPU has multiprocessors, a block has all the warps that its
    registers allow, and the contexts are split until every multiprocessor has a block, or every warp has a page of the
    longest context that a block table of that width holds.
    """
    pairs = max(num_requests * num_kv_heads, 1)
    if pairs > WAVE:
        return 8, 1
    warps = 16 if head_dim == 64 else 8
    return warps, max(1, min(MAX_SPLITS, WAVE // pairs, -(-table_width // warps)))


def quickest_prefill(device: Device) -> str:
    """The prefill kernel for a device: Hopper's own products where it has them."""
    return WGMMA if runs_on(load_source(f"{WGMMA}.cu"), device.compute_capability) else PREFILL


class PagedAttention:
    """The attention of Ops over a cache with blocks of 16, for a model and device where what_is_missing is "".

    A step is one launch of each kernel at most: paged_decode takes the requests of one new token, a prefill kernel the
    others, and each finds out on the device which those are. The host's lengths decide only whether a kernel is
    launched at all, the grids come from the numbers of tokens and requests: a captured launch stays right for every
    step of as many tokens and requests (for one captured with host lengths of 1: of at most 1 token a request).
    prefill: the name of the prefill kernel; None: the quickest one of the device.
    """

    def __init__(self, device: Device, config: Any, dtype: Any, prefill: str | None = None) -> None:
        self._device, self._dtype = device, dtype
        self._head_dim, self._kv_heads = config.head_dim, config.num_key_value_heads
        self._group = config.num_attention_heads // config.num_key_value_heads
        self._scale = math.log2(math.e) / math.sqrt(config.head_dim)  # the kernels work in powers of two
        self._state = config.head_dim + 4  # STATE of softmax_states.cuh
        self._prefill_name = prefill or quickest_prefill(device)
        self._kernels: dict[str, Kernel] = {}
        self._scratch: tuple[Array, Array] | None = None

    def reserve(self) -> None:
        """Compile, and allocate what split contexts need: no batch has more than WAVE blocks that leave a part."""
        self._kernel(DECODE), self._kernel(self._prefill_name)
        if self._scratch is None:
            partial = self._device.empty(WAVE * self._group * self._state, np.float32)
            self._scratch = partial, self._device.zeros(WAVE, np.int32)

    def __call__(self, q: Array, kv: Array, meta: StepMeta, out: Array) -> None:
        """q (T,Hq*D), a column view -> out (T,Hq*D); shapes are the caller's to check.

        Raises UserError when the rows of q are not a multiple of 16 bytes apart, which a load of 16 bytes needs.
        """
        if row_stride(q) % 8:
            raise UserError(f"attention: rows of q are {row_stride(q)} elements apart; they must be a multiple of 8")
        if self._scratch is None:
            self.reserve()
        lengths = meta.query_lens_host
        longest, shortest = max(lengths, default=0), min(lengths, default=0)
        arrays = (q, kv, meta.query_start_loc, meta.seq_lens, meta.block_table, out)
        requests, width = meta.block_table.shape
        shape = (row_stride(q), len(q), requests, width, self._kv_heads, self._group, self._scale)
        if longest > 1:
            self._prefill(arrays, shape, len(q), requests)
        if longest <= 1 or shortest <= 1:
            self._decode(arrays, shape, requests, width)

    def _decode(self, arrays: tuple[Array, ...], shape: tuple[Any, ...], requests: int, width: int) -> None:
        warps, splits = plan_decode(requests, self._kv_heads, self._head_dim, width)
        grid, shared = ((requests + 1) * self._kv_heads, splits), warps * self._group * self._state * 4
        args = (*arrays, *(self._scratch or ()), *shape)
        self._kernel(DECODE)(grid, (32 * warps,), args, shared_mem=shared, programmatic=True)

    def _prefill(self, arrays: tuple[Array, ...], shape: tuple[Any, ...], tokens: int, requests: int) -> None:
        block = BLOCKS[self._prefill_name, self._head_dim]
        tokens_a_block = block.rows // self._group
        grid = (self._kv_heads, tokens // tokens_a_block + requests + 1)
        # A GPU divides slowly: by a multiplication with the inverse, rounded up, and a shift
        inverses = 65536 // self._group + 1, -(-(2**32) // tokens_a_block)
        args = (*arrays, *shape[:-1], *inverses, self._scale)
        self._kernel(self._prefill_name)(grid, (block.threads,), args, shared_mem=block.shared_bytes(self._head_dim))

    def _kernel(self, name: str) -> Kernel:
        if name not in self._kernels:
            options = (*scalar_options(self._dtype), f"-DHEAD_DIM={self._head_dim}")
            kernel = self._device.RawModule(load_source(f"{name}.cu"), options=options).get_function(name)
            if block := BLOCKS.get((name, self._head_dim)):
                size = block.shared_bytes(self._head_dim)
                kernel.max_dynamic_shared_size_bytes = size  # type: ignore[attr-defined]
            self._kernels[name] = kernel
        return self._kernels[name]
