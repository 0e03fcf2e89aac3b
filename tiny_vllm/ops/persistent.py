"""All layers of a decode step in one kernel: the launcher of decode_layers.cu, and the rule of where it holds.

The kernel stays on the GPU for the whole step: each block fetches its share of all weights without a stop, and hands
activations to the others through words in memory. That saves the ends and beginnings of 80 kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tiny_vllm.device.base import Device, Kernel
from tiny_vllm.device.checks import check_shape
from tiny_vllm.device.emulator.limits import opt_in_shared
from tiny_vllm.device.source import as_dtype, load_source, required_capability
from tiny_vllm.errors import KernelError
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.ops.paged_attention import BLOCK_SIZE, wrong_heads
from tiny_vllm.types import Array, KVCache, StepMeta

FILE, NAME = "decode_layers.cu", "decode_layers"
MAX_ROWS, TILE, THREADS, CHUNK, MAX_COLUMNS = 8, 16, 288, 256, 4096  # of decode_layers_shape.cuh
ROW_BYTES = 2 * 1024 + 64  # of decode_layers_ring.cuh
STAGE_BYTES, MIN_STAGES, MAX_STAGES = TILE * ROW_BYTES, 4, 6
MAX_BOUND = 8  # caches, or sets of weights, whose addresses are kept
MEASURED = 90  # the architecture where docs/performance.md says that it is the quicker way, for 1 to 8 rows


def what_is_missing(device: Device, config: Any, dtype: Any, block_size: int = BLOCK_SIZE) -> str:
    """Why the kernel does not hold here, or "" where it does; the stages of a layer stand in, one after another.

    The architecture is what the file asks for in `requires: sm_90`.
    """
    if not _multiprocessors(device):
        return "the emulator runs one block after another; needed: a GPU, where all run at the same time"
    needs = required_capability(load_source(FILE))
    if device.compute_capability < needs:
        return f"the device is sm_{device.compute_capability}; needed: sm_{needs}"
    if as_dtype(dtype).name != "bfloat16":
        return f"the element type is {as_dtype(dtype)}; supported: bfloat16"
    return wrong_heads(config, block_size) or _wrong_widths(config) or _no_room(device, config)


def _wrong_widths(config: Any) -> str:
    widths = {"hidden_size": config.hidden_size, "heads * head_dim": config.num_attention_heads * config.head_dim}
    for name, width in (widths | {"intermediate_size": config.intermediate_size}).items():
        if width % CHUNK:
            return f"{name} is {width}; supported: multiples of {CHUNK}"
        if name in widths and width > MAX_COLUMNS:
            return f"{name} is {width}; supported: up to {MAX_COLUMNS}"
    return ""


def _no_room(device: Device, config: Any) -> str:
    stages, room = count_stages(device, config), opt_in_shared(device.compute_capability)
    wanted = fixed_bytes(config) + MIN_STAGES * STAGE_BYTES
    return "" if stages >= MIN_STAGES else f"a block has {room} bytes of shared memory; needed: {wanted}"


def _multiprocessors(device: Device) -> int:
    return getattr(device, "num_multiprocessors", 0)


def sizes(config: Any) -> tuple[str, ...]:
    """What the kernel is compiled for, as options."""
    sizes = {
        "HEAD_DIM": config.head_dim,
        "HIDDEN": config.hidden_size,
        "INTERMEDIATE": config.intermediate_size,
        "NUM_HEADS": config.num_attention_heads,
        "NUM_KV_HEADS": config.num_key_value_heads,
    }
    return tuple(f"-D{name}={size}" for name, size in sizes.items())


def fixed_bytes(config: Any) -> int:
    """Shared memory beside the ring: sums of tiles, states of attention, squares, barriers."""
    group = config.num_attention_heads // config.num_key_value_heads
    return 2 * 8 * 128 * 4 + 8 * group * (config.head_dim + 4) * 4 + 2 * 8 * 8 * 4 + 128


def count_stages(device: Device, config: Any) -> int:
    """Stages of the ring that shared memory has room for."""
    return min(MAX_STAGES, (opt_in_shared(device.compute_capability) - fixed_bytes(config)) // STAGE_BYTES)


def plan_blocks(config: Any, multiprocessors: int) -> int:
    """The fewest blocks, one a multiprocessor at most, that need no more rounds for any product's tiles than all do."""
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    outputs = (heads * config.head_dim, config.hidden_size, 2 * config.intermediate_size)
    tiles = [each // TILE for each in outputs]
    return max(-(-each // -(-each // multiprocessors)) for each in tiles)


def layer_words(config: Any, blocks: int) -> int:
    """Exchange words of a layer (decode_layers_exchange.cuh)."""
    q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    slot = q + 2 * kv + q + 2 * config.hidden_size + config.intermediate_size
    partial = config.num_attention_heads // config.num_key_value_heads * (config.head_dim + 2)
    return -(-(MAX_ROWS * slot // 2 + blocks * partial) // 4) * 4


class PersistentLayers:
    """The `layers` of Ops, for a model and device where what_is_missing is "", and a step where `fits` holds."""

    def __init__(self, device: Device, config: Any) -> None:
        self._device, self._config = device, config
        self.blocks = plan_blocks(config, _multiprocessors(device))
        self._stages = count_stages(device, config)
        self._shared = fixed_bytes(config) + self._stages * STAGE_BYTES
        self._kernel: Kernel | None = None
        self._bound: dict[tuple[int, ...], int] = {}  # addresses -> where in _addresses they are
        self._captured: set[int] = set()  # those that a graph will read

    def reserve(self) -> None:
        """Compile, and allocate what blocks hand each other and the table of addresses."""
        if self._kernel is not None:
            return
        device, layers = self._device, self._config.num_hidden_layers
        words = 2 * layers * layer_words(self._config, self.blocks)
        self._exchange = device.asarray(np.full(words, 0xFFFFFFFF, np.uint32))  # EMPTY
        self._state = device.zeros((2,), np.int32)
        self._addresses = device.zeros((MAX_BOUND, layers, 7), np.uint64)
        self._kernel = self._compile()

    def _compile(self) -> Kernel:
        kernel: Any = self._device.RawModule(load_source(FILE), options=sizes(self._config)).get_function(NAME)
        kernel.max_dynamic_shared_size_bytes = self._shared
        kernel.cooperative = True
        return kernel

    def fits(self, rows: int, meta: StepMeta, cache: KVCache) -> bool:
        """Whether a step is one the kernel runs: 1 to 8 requests with one new token each, blocks of 16."""
        lengths = meta.query_lens_host
        one_each = len(lengths) == rows and all(length == 1 for length in lengths)
        return 1 <= rows <= MAX_ROWS and one_each and cache.block_size == BLOCK_SIZE

    def __call__(self, x: Array, weights: Any, cache: KVCache, meta: StepMeta, b: Buffers) -> None:
        """As Ops.layers: x (rows,H) in place. Nothing of b is written.

        Raises KernelError in a capture for weights or a cache that no step before it had.
        """
        self.reserve()
        addresses = self._addresses[self._bind(weights, cache)]
        rows, (_, width) = len(x), meta.block_table.shape
        check_shape("layers: x", x, (rows, self._config.hidden_size))
        check_shape("layers: slots", meta.slot_mapping, (rows,))
        check_shape("layers: seq_lens", meta.seq_lens, (rows,))
        plan = (meta.positions, meta.slot_mapping, meta.seq_lens, meta.block_table, b.rope_table)
        shape = (rows, self._config.num_hidden_layers, width, self._stages, self._config.rms_norm_eps)
        args = (x, addresses, *plan, self._exchange, self._state, *shape)
        assert self._kernel is not None
        self._kernel((self.blocks,), (THREADS,), args, shared_mem=self._shared)

    def _bind(self, weights: Any, cache: KVCache) -> int:
        """Which table of addresses is that of these weights and this cache; a new one is brought to the device."""
        arrays = [
            (layer.qkv, layer.o, layer.gate_up, layer.down, layer.input_norm, layer.post_attention_norm, kv)
            for layer, kv in zip(weights.layers, cache.layers, strict=True)
        ]
        addresses = tuple(array.data.ptr for layer in arrays for array in layer)
        capturing = self._device.stream.is_capturing()  # type: ignore[attr-defined]
        if addresses not in self._bound:
            if capturing:
                raise KernelError("layers: run a step with these weights and this cache once before capturing it")
            index = self._free_table()
            self._device.copy_in(self._addresses[index], np.array(addresses, np.uint64).reshape(-1, 7))
            self._bound[addresses] = index
        index = self._bound[addresses]
        if capturing:
            self._captured.add(index)
            self._device.hold(tuple(arrays))  # type: ignore[attr-defined]
        return index

    def _free_table(self) -> int:
        """A table that no graph reads; the oldest, when all are in use."""
        if len(self._bound) < MAX_BOUND:
            return len(self._bound)
        oldest = next((key for key, index in self._bound.items() if index not in self._captured), None)
        if oldest is None:
            raise KernelError(f"layers: graphs of {MAX_BOUND} caches were captured; make another set of operations")
        return self._bound.pop(oldest)
