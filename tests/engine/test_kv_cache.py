"""The cache's size, and what happens when it does not fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiny_vllm.engine.kv_cache import CacheSize, allocate_cache, bytes_per_token, num_blocks
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig

CONFIG = ModelConfig.from_folder(Path(__file__).parents[1] / "data" / "tiny" / "tiny-odd")


def device_with(free: int, total: int | None = None, name: str = "cuda") -> Any:
    return SimpleNamespace(name=name, description="a small GPU", memory_info=lambda: (free, total or free))


def test_bytes_of_a_token():
    llama_1b = dataclasses.replace(CONFIG, num_hidden_layers=16, num_key_value_heads=8, head_dim=64)
    assert bytes_per_token(llama_1b, ml_dtypes.bfloat16) == 32 * 1024
    assert bytes_per_token(llama_1b, np.float32) == 64 * 1024


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_whole_blocks(tokens, blocks):
    assert num_blocks(tokens) == blocks


def test_a_cache_is_zeroed(device):
    cache = allocate_cache(device, CONFIG, np.float16, 3, 8)
    shape = (3, CONFIG.num_key_value_heads, 2, 8, CONFIG.head_dim)
    assert [layer.shape for layer in cache.layers] == [shape] * CONFIG.num_hidden_layers
    assert (cache.block_size, cache.num_blocks) == (8, 3)
    assert all((device.to_host(layer) == 0).all() for layer in cache.layers)
    assert sum(layer.nbytes for layer in cache.layers) == 24 * bytes_per_token(CONFIG, np.float16)


def test_the_share_of_a_gpu():
    """gpu_memory_utilization counts what others, and the weights, have taken already."""
    size = CacheSize(16, 65, 1000, gpu_memory_utilization=0.5)
    assert size.count(device_with(free=700, total=1000), block_bytes=10) == 20
    assert CacheSize(16, 65, 1000, 0.9).count(device_with(free=700, total=1000), 10) == 60


def test_the_share_of_a_computer():
    """On the emulator a quarter of what is free, 1 GiB at most."""
    size = CacheSize(16, 65, 10**9)
    assert size.count(device_with(free=4000, name="emulator"), 10) == 100
    assert size.count(device_with(free=1 << 50, name="emulator"), 1 << 20) == 1024


def test_no_more_than_the_requests_can_fill():
    # 64 of 65 tokens are ever in the cache: the last is not computed
    assert CacheSize(16, 65, 3).count(device_with(free=10**9), 10) == 3 * 4


@pytest.mark.parametrize("name", ["cuda", "emulator"])
def test_a_length_that_does_not_fit_names_the_largest_that_does(name):
    size = CacheSize(16, 500, 4, 1.0)
    free = 57 if name == "cuda" else 4 * 57
    with pytest.raises(UserError, match=r"max_model_len is 500: .* of a small GPU .*; the largest that fits is 81$"):
        size.count(device_with(free, name=name), 10)
    fitting = dataclasses.replace(size, max_model_len=81)
    assert fitting.count(device_with(free, name=name), 10) == 5
    with pytest.raises(UserError, match="the largest that fits is 81"):
        dataclasses.replace(size, max_model_len=82).count(device_with(free, name=name), 10)


def test_no_room_at_all():
    with pytest.raises(UserError, match="no length fits"):
        CacheSize(16, 2, 1).count(device_with(free=10), 1000)


def test_so_many_blocks():
    device = device_with(free=1000)
    assert CacheSize(16, 500, 4, num_gpu_blocks_override=7).count(device, 100) == 7
    with pytest.raises(UserError, match=r"num_gpu_blocks_override is 10: .* the largest that fits is 9$"):
        CacheSize(16, 500, 4, num_gpu_blocks_override=10).count(device, 100)
