"""The cache's size, and what happens when it does not fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiny_vllm.engine.kv_cache import allocate_cache, bytes_per_token, num_blocks
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig

CONFIG = ModelConfig.from_folder(Path(__file__).parents[1] / "data" / "tiny" / "tiny-odd")


def device_with(free: int) -> Any:
    return SimpleNamespace(description="a small GPU", zeros=np.zeros, memory_info=lambda: (free, 2 * free))


def test_bytes_of_a_token():
    llama_1b = dataclasses.replace(CONFIG, num_hidden_layers=16, num_key_value_heads=8, head_dim=64)
    assert bytes_per_token(llama_1b, ml_dtypes.bfloat16) == 32 * 1024
    assert bytes_per_token(llama_1b, np.float32) == 64 * 1024


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_whole_blocks(device, tokens, blocks):
    assert num_blocks(tokens) == blocks
    cache = allocate_cache(device, CONFIG, np.float32, tokens)
    shape = (blocks, CONFIG.num_key_value_heads, 2, 16, CONFIG.head_dim)
    assert [layer.shape for layer in cache.layers] == [shape] * CONFIG.num_hidden_layers
    assert (cache.block_size, cache.num_blocks) == (16, blocks)
    assert all((device.to_host(layer) == 0).all() for layer in cache.layers)


def test_the_bytes_are_those_of_the_arrays(device):
    cache = allocate_cache(device, CONFIG, np.float16, 48)
    assert sum(layer.nbytes for layer in cache.layers) == 48 * bytes_per_token(CONFIG, np.float16)


def test_a_length_that_does_not_fit_names_the_largest_that_does():
    block = 16 * bytes_per_token(CONFIG, np.float32)
    device = device_with(free=int(5.5 * block / 0.95))
    with pytest.raises(UserError, match=r"max_model_len is 81: .* a small GPU .*; the largest that fits is 80$"):
        allocate_cache(device, CONFIG, np.float32, 81)
    assert allocate_cache(device, CONFIG, np.float32, 80).num_blocks == 5


def test_no_room_at_all():
    with pytest.raises(UserError, match="no length fits"):
        allocate_cache(device_with(free=1000), CONFIG, np.float32, 16)
