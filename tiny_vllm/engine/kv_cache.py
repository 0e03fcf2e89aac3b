"""The KV cache (chapters 09 and 14): how many bytes a token takes, and how many tokens fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.types import KVCache

BLOCK_SIZE = 16
USABLE = (
    0.95  # of the free memory: the driver, the desktop and other programs take some between here and the first step
)


def bytes_per_token(config: ModelConfig, dtype: Any) -> int:
    """A key and a value for each layer and key/value head: 2 * layers * Hkv * D * bytes an element."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * np.dtype(dtype).itemsize


def num_blocks(num_tokens: int, block_size: int = BLOCK_SIZE) -> int:
    """Blocks that hold num_tokens; the last one may be partly empty."""
    return -(-num_tokens // block_size)


def allocate_cache(
    device: Device, config: ModelConfig, dtype: Any, num_tokens: int, block_size: int = BLOCK_SIZE
) -> KVCache:
    """Room for num_tokens tokens, in whole blocks, zeroed; UserError names the largest length that fits.

    Zeroed, because a tensor-core kernel multiplies the unwritten rest of a block by probability 0, and 0 * NaN is NaN.
    """
    _check_fits(device, config, dtype, num_tokens, block_size)
    shape = (num_blocks(num_tokens, block_size), config.num_key_value_heads, 2, block_size, config.head_dim)
    return KVCache([device.zeros(shape, dtype) for _ in range(config.num_hidden_layers)], block_size)


def _check_fits(device: Device, config: ModelConfig, dtype: Any, num_tokens: int, block_size: int) -> None:
    block_bytes = block_size * bytes_per_token(config, dtype)
    usable = int(USABLE * device.memory_info()[0])
    needed = block_bytes * num_blocks(num_tokens, block_size)
    if needed > usable:
        largest = usable // block_bytes * block_size
        way_out = (
            f"the largest that fits is {largest}" if largest else "no length fits; free memory or use a smaller model"
        )
        raise UserError(
            f"max_model_len is {num_tokens}: its KV cache takes {gigabytes(needed)}, "
            f"and {gigabytes(usable)} of {device.description} are free; {way_out}"
        )


def gigabytes(count: int) -> str:
    """Bytes for a reader: 3.2 GB."""
    return f"{count / 1e9:.3g} GB"
