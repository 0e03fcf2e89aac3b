"""The KV cache (chapters 09 and 14): how many bytes a token takes, and how many tokens fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.types import KVCache

BLOCK_SIZE = 16
EMULATOR_BYTES = 1 << 30  # at most, and no more than a quarter of what is free: it is the user's own computer
USABLE = (
    0.95  # of the free memory: the driver, the desktop and other programs take some between here and the first step
)


def bytes_per_token(config: ModelConfig, dtype: Any) -> int:
    """A key and a value for each layer and key/value head: 2 * layers * Hkv * D * bytes an element."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * np.dtype(dtype).itemsize


def num_blocks(num_tokens: int, block_size: int = BLOCK_SIZE) -> int:
    """Blocks that hold num_tokens; the last one may be partly empty."""
    return -(-num_tokens // block_size)


@dataclass(frozen=True)
class CacheSize:
    """How the cache's number of blocks is found, once all else that a step needs is allocated.

    max_model_len: of one request; max_num_seqs: requests at once, and no more room than they can fill is taken.
    gpu_memory_utilization: the part of a GPU's memory that this process and those already there may fill together.
    """

    block_size: int
    max_model_len: int
    max_num_seqs: int
    gpu_memory_utilization: float = 0.9
    num_gpu_blocks_override: int | None = None

    def count(self, device: Device, block_bytes: int) -> int:
        """Blocks to allocate. UserError names the largest max_model_len that fits, or the largest override."""
        budget = self.budget(device)
        if self.num_gpu_blocks_override is not None:
            return self._checked_override(device, budget, block_bytes)
        fitting = budget // block_bytes
        # The last token of a request is never computed, so max_model_len - 1 are in the cache at most
        longest = num_blocks(self.max_model_len - 1, self.block_size)
        if longest > fitting:
            raise UserError(self._too_long(device, budget, longest * block_bytes, fitting * self.block_size))
        return min(fitting, longest * self.max_num_seqs)

    def budget(self, device: Device) -> int:
        """Bytes that the cache may take."""
        free, total = device.memory_info()
        if device.name == "emulator":
            return min(EMULATOR_BYTES, free // 4)
        return max(int(total * self.gpu_memory_utilization) - (total - free), 0)

    def _too_long(self, device: Device, budget: int, needed: int, largest: int) -> str:
        max_model_len = min(largest + 1, self.max_model_len)
        way_out = f"the largest that fits is {max_model_len}"
        if not largest:
            way_out = "no length fits; free memory or use a smaller model"
        return (
            f"max_model_len is {self.max_model_len}: its KV cache takes {gigabytes(needed)}, and "
            f"{gigabytes(budget)} of {device.description} are for it; {way_out}"
        )

    def _checked_override(self, device: Device, budget: int, block_bytes: int) -> int:
        wanted, free = self.num_gpu_blocks_override, device.memory_info()[0]
        assert wanted is not None
        largest = int(USABLE * free) // block_bytes
        if wanted > largest:
            raise UserError(
                f"num_gpu_blocks_override is {wanted}: they take {gigabytes(wanted * block_bytes)}, and "
                f"{gigabytes(free)} of {device.description} are free; the largest that fits is {largest}"
            )
        return wanted


def allocate_cache(device: Device, config: ModelConfig, dtype: Any, blocks: int, block_size: int) -> KVCache:
    """A cache of so many blocks, zeroed.

    Zeroed, because a tensor-core kernel multiplies the unwritten rest of a block by probability 0, and 0 * NaN is NaN.
    """
    shape = (blocks, config.num_key_value_heads, 2, block_size, config.head_dim)
    return KVCache([device.zeros(shape, dtype) for _ in range(config.num_hidden_layers)], block_size)


def gigabytes(count: int) -> str:
    """Bytes for a reader: 3.2 GB."""
    return f"{count / 1e9:.3g} GB"
