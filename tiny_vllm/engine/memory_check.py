"""Settings that could never fit, refused before memory is taken: the cache itself is measured last (kv_cache.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.engine.kv_cache import USABLE, CacheSize, bytes_per_token, gigabytes
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.sampling_params import MAX_LOGIT_BIASES, MAX_STOP_TOKEN_IDS

TABLES = 0.5  # of the free memory, at most, for what grows with a setting and is not the cache


def check_memory(device: Device, config: ModelConfig, dtype: Any, size: CacheSize, num_tokens: int) -> None:
    """UserError that names the largest max_num_seqs, or a max_model_len, for which there is memory.

    num_tokens: the most that a step computes.
    """
    share = int(TABLES * device.memory_info()[0])
    most = share // _bytes_per_row(config)
    if size.max_num_seqs > most:
        raise UserError(
            f"max_num_seqs is {size.max_num_seqs}: their logits and what they are sampled by take "
            f"{gigabytes(size.max_num_seqs * _bytes_per_row(config))}, and {gigabytes(share)} of {device.description} "
            f"can be had for that; the largest that fits is {most}"
        )
    longest = share // _bytes_per_position(config, size)
    if size.max_model_len > longest:
        fits = min(longest, _fitting_length(device, config, dtype, size, num_tokens))
        way_out = f"{fits} fits" if fits > 1 else "no length fits; lower max_num_seqs"
        raise UserError(
            f"max_model_len is {size.max_model_len}: the tables for such lengths alone take "
            f"{gigabytes(size.max_model_len * _bytes_per_position(config, size))}, and {gigabytes(share)} of "
            f"{device.description} can be had for them; {way_out}"
        )


def _fitting_length(device: Device, config: ModelConfig, dtype: Any, size: CacheSize, num_tokens: int) -> int:
    """A max_model_len for which tables and cache fit beside what takes the same for any length."""
    if size.num_gpu_blocks_override is not None:
        return size.max_model_len
    cached, computed = bytes_per_token(config, dtype), _bytes_per_token(config, dtype)
    each = cached + _bytes_per_position(config, size)
    left = int(USABLE * size.budget(device)) - size.max_num_seqs * _bytes_per_row(config) - size.block_size * cached
    # A step of short requests computes less: all their tokens at most
    return max((left - num_tokens * computed) // each, left // (each + size.max_num_seqs * computed))


def _bytes_per_token(config: ModelConfig, dtype: Any) -> int:
    """Activations of a token of the step, and of a row whose logits are wanted (ops/buffers.py)."""
    heads = config.num_attention_heads + config.num_key_value_heads
    width = 4 * config.hidden_size + 2 * heads * config.head_dim + 3 * config.intermediate_size
    return width * np.dtype(dtype).itemsize


def _bytes_per_row(config: ModelConfig) -> int:
    """Logits, logits after penalties, and (id, value) of each bias and stop token."""
    return 2 * 4 * config.vocab_size + 8 * (MAX_LOGIT_BIASES + MAX_STOP_TOKEN_IDS)


def _bytes_per_position(config: ModelConfig, size: CacheSize) -> int:
    """A row of the RoPE table, which takes three times as much while it is made, and by request a token and a block."""
    by_request = 4 + 2 * 4 / size.block_size
    return int(3 * 4 * config.head_dim + by_request * size.max_num_seqs) + 1
