"""The stages of a step with at most 8 rows: launchers of decode_*.cu, and the rule of where they hold.

Such a step is a read of the weights. A layer is five kernels: norm, qkv, RoPE and cache write; attention; output
product and residual; norm, gate and up, SiLU; down product and residual. Each may begin while the last one ends.
"""

from __future__ import annotations

from typing import Any

from tiny_vllm.device.base import Device, Kernel
from tiny_vllm.device.checks import check_shape, row_stride
from tiny_vllm.device.emulator.limits import opt_in_shared
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.device.source import as_dtype, load_source, required_capability
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.types import Array, StepMeta

LINEAR, QKV, MLP, HEAD = "decode_linear", "decode_qkv", "decode_mlp", "decode_head"
MAX_ROWS = 8  # of gemv.cuh, as what follows
WARPS, TILE, CHUNK, DEPTH, SUM_STRIDE = 16, 16, 64, 2, 20
THREADS = 32 * WARPS
QUEUE_BYTES = DEPTH * TILE * CHUNK * 2 * WARPS  # of the weights that a block has on their way
WAVE = 132  # blocks that run at one time, one a multiprocessor: of an H200, where the device does not say


def what_is_missing(device: Device, config: Any, dtype: Any) -> str:
    """Why these kernels do not hold here, whatever the step, or "" where they do; the composed stages stand in."""
    needs = max(required_capability(load_source(f"{name}.cu")) for name in (LINEAR, QKV, MLP, HEAD))
    if device.compute_capability < needs:
        return f"the device is sm_{device.compute_capability}; needed: sm_{needs}"
    if as_dtype(dtype).itemsize != 2:
        return f"the element type is {as_dtype(dtype)}; supported: bfloat16 and float16"
    if config.head_dim % TILE:
        return f"head_dim is {config.head_dim}; supported: multiples of {TILE}"
    return ""


def plan_grid(tiles: int, wave: int) -> int:
    """Blocks for so many tiles: at most `wave`, and none has more than one tile more than another."""
    rounds = -(-tiles // wave)
    return -(-tiles // rounds)


def sums_bytes(rows: int) -> int:
    """Shared memory of the warps' sums of two tiles."""
    return 2 * WARPS * rows * SUM_STRIDE * 4


def queued_bytes(rows: int) -> int:
    """Shared memory of a block that takes rows through a queue: of the weights, of x, sums."""
    return QUEUE_BYTES + DEPTH * CHUNK * 2 * WARPS * rows + sums_bytes(rows)


def normed_bytes(rows: int, inner: int) -> int:
    """Shared memory of a block that normalises rows of `inner` elements: queue, rows, sums, sums of squares."""
    return QUEUE_BYTES + rows * (inner // 8 | 4) * 16 + sums_bytes(rows) + WARPS // 2 * MAX_ROWS * 4


def prefer_shared(kernel: Kernel) -> None:
    """Let the whole memory of a multiprocessor be shared memory, not L1, while this kernel runs.

    Two kernels overlap on a multiprocessor only where both divide it alike.
    """
    if hasattr(kernel, "preferred_shared_memory_carveout"):
        kernel.preferred_shared_memory_carveout = 100


class DecodeStages:
    """Fused stages, for a model and device where what_is_missing is "", and a step where `fits` holds."""

    def __init__(self, device: Device, config: Any, dtype: Any) -> None:
        self._config = config
        self._library = KernelLibrary(device, dtype, config.head_dim)
        self._wave = getattr(device, "num_multiprocessors", 0) or WAVE
        self._most_shared = opt_in_shared(device.compute_capability)
        self._kernels: dict[str, Kernel] = {}

    def fits(self, rows: int, weight: Array, normed: bool) -> bool:
        """Whether a product of so many rows with weight (N,K) has a kernel here; normed: with a norm before it."""
        outputs, inner = weight.shape
        shared = normed_bytes(rows, inner) if normed else queued_bytes(rows)
        whole = inner % CHUNK == 0 and outputs % TILE == 0
        return 1 <= rows <= MAX_ROWS and whole and shared <= self._most_shared

    def attn_in(self, x: Array, layer: Any, kv: Array, meta: StepMeta, b: Buffers) -> None:
        """As Ops.attn_in; b.q alone is written of b.qkv."""
        (rows, inner), (outputs, _), (_, kv_heads, _, block_size, dim) = x.shape, layer.qkv.shape, kv.shape
        heads = self._config.num_attention_heads
        check_shape("attn_in: qkv", layer.qkv, ((heads + 2 * kv_heads) * dim, inner))
        check_shape("attn_in: norm", layer.input_norm, (inner,))
        check_shape("attn_in: slots", meta.slot_mapping, (rows,))
        arrays = (x, layer.input_norm, layer.qkv, b.q, kv, meta.positions, meta.slot_mapping, b.rope_table)
        shape = (rows, inner, row_stride(b.q), heads, kv_heads, block_size, self._config.rms_norm_eps)
        self._launch(QKV, outputs // TILE, normed_bytes(rows, inner), *arrays, *shape)

    def add_product(self, x: Array, weight: Array, out: Array) -> None:
        """out (rows,N) += x (rows,K) @ weight (N,K) transposed."""
        rows, (outputs, inner) = len(x), weight.shape
        check_shape("attn_out, mlp_out: x", x, (rows, inner))
        check_shape("attn_out, mlp_out: out", out, (rows, outputs))
        self._launch(LINEAR, outputs // TILE, queued_bytes(rows), x, weight, out, rows, outputs, inner)

    def mlp_in(self, x: Array, layer: Any, b: Buffers) -> None:
        """As Ops.mlp_in; b.gate_up stays as it is."""
        (rows, inner), width = x.shape, len(layer.gate_up) // 2
        check_shape("mlp_in: gate_up", layer.gate_up, (2 * width, inner))
        check_shape("mlp_in: norm", layer.post_attention_norm, (inner,))
        check_shape("mlp_in: activated", b.activated, (rows, width))
        arrays, shape = (x, layer.post_attention_norm, layer.gate_up, b.activated), (rows, width, inner)
        self._launch(MLP, 2 * width // TILE, normed_bytes(rows, inner), *arrays, *shape, self._config.rms_norm_eps)

    def head(self, x: Array, weights: Any, meta: StepMeta, b: Buffers) -> Array:
        """As Ops.head; b.last and b.last_normed stay as they are."""
        (vocabulary, inner), rows = weights.lm_head.shape, len(meta.logits_indices)
        check_shape("head: x", x, (len(x), inner))
        check_shape("head: norm", weights.norm, (inner,))
        check_shape("head: logits", b.logits, (rows, vocabulary))
        arrays = (x, meta.logits_indices, weights.norm, weights.lm_head, b.logits)
        shape = (rows, vocabulary, inner, self._config.rms_norm_eps)
        self._launch(HEAD, vocabulary // TILE, normed_bytes(rows, inner), *arrays, *shape)
        return b.logits

    def _launch(self, name: str, tiles: int, shared: int, *args: Any) -> None:
        """One block a multiprocessor: with over half of the shared memory no second one fits (gemv.cuh)."""
        kernel, shared = self._kernels.get(name) or self._kernel(name), max(shared, self._most_shared // 2 + 1)
        kernel((plan_grid(tiles, self._wave),), (THREADS,), args, shared_mem=shared, programmatic=True)

    def _kernel(self, name: str) -> Kernel:
        kernel = self._kernels[name] = self._library.kernel(f"{name}.cu", name)
        kernel.max_dynamic_shared_size_bytes = self._most_shared  # type: ignore[attr-defined]
        prefer_shared(kernel)
        return kernel
