"""What the engine runs by default: launchers of kernels/*.cu."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from tiny_vllm.device.base import Device
from tiny_vllm.device.checks import check_shape, row_stride
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.device.source import as_dtype
from tiny_vllm.errors import UserError
from tiny_vllm.ops import decode, persistent
from tiny_vllm.ops.base import Ops
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.ops.decode import DecodeStages
from tiny_vllm.ops.many_rows import VECTOR_BYTES, ManyRows
from tiny_vllm.ops.paged_attention import BLOCK_SIZE, PREFILL, PagedAttention, what_is_missing
from tiny_vllm.ops.persistent import PersistentLayers
from tiny_vllm.types import Array, KVCache, StepMeta

THREADS = 256  # of a block whose threads never wait
MOST_THREADS = 1024  # of any block
COLUMNS = 4  # of attention.cu: output columns of a thread
FOLD = 16  # of reduce.cuh: the fewest threads it works with
BY_TENSOR_CORES = ("paged", "mma.sync")  # choices of attention that nothing may stand in for


class TunedOps(Ops):
    """Each primitive launches one kernel, compiled on first use; given out, nothing is allocated.

    attention: "paged" runs paged_decode.cu and paged_prefill*.cu, on tensor cores, "plain" attention.cu; "auto" runs
    the former on a GPU where they hold, and the latter on the emulator, where it is the quicker one; "mma.sync" runs
    paged_prefill.cu where "paged" would run paged_prefill_wgmma.cu.
    stages: "fused" runs decode_*.cu for steps of few rows that they hold for, "composed" primitives alone, "persistent"
    all layers of such a step in one kernel, and "fused" where that does not hold; "auto" chooses as with attention,
    "persistent" where it is known to be the quicker one.
    """

    name: ClassVar[str] = "tuned"
    FUSES: ClassVar[dict[str, tuple[str, ...]]] = {
        "attn_in": ("rms_norm", "linear", "rope", "write_kv"),
        "attn_out": ("linear",),
        "mlp_in": ("rms_norm", "linear", "silu_mul"),
        "mlp_out": ("linear",),
        "head": ("take_rows", "rms_norm", "linear"),
        "layers": ("rms_norm", "linear", "rope", "write_kv", "attention", "silu_mul"),
    }

    def __init__(
        self,
        device: Device,
        config: Any,
        dtype: Any,
        attention: Literal["auto", "plain", "paged", "mma.sync"] = "auto",
        stages: Literal["auto", "composed", "fused", "persistent"] = "auto",
    ) -> None:
        super().__init__(device, config, dtype)
        if config.head_dim % 8 or not FOLD <= config.head_dim <= THREADS:
            raise UserError(f"head_dim is {config.head_dim}; supported: multiples of 8 from {FOLD} to {THREADS}")
        self._library = KernelLibrary(device, dtype, config.head_dim)
        # A GPU hides a thread's wait behind other threads; the emulator has to switch stacks for every one that waits
        self._waiting_threads = FOLD if device.name == "emulator" else THREADS
        self._vectors_of_rows, self._vector = device.name != "emulator", VECTOR_BYTES // as_dtype(dtype).itemsize
        self._paged = self._choose(attention)
        self._asked_for = attention
        self._decode = self._choose_stages(stages)
        self._many = ManyRows(device, config, dtype)
        self._turns = stages != "composed" and self._many.turns
        self._persistent = self._choose_layers(stages, attention)

    def _choose(self, attention: str) -> PagedAttention | None:
        missing = what_is_missing(self.device, self.config, self.dtype)
        if attention in BY_TENSOR_CORES and missing:
            raise _refusal(attention, missing)
        if attention == "plain" or missing or (attention == "auto" and self.device.name == "emulator"):
            return None
        return PagedAttention(self.device, self.config, self.dtype, PREFILL if attention == "mma.sync" else None)

    def _choose_stages(self, stages: str) -> DecodeStages | None:
        missing = decode.what_is_missing(self.device, self.config, self.dtype)
        if stages == "fused" and missing:
            raise UserError(f"stages='fused' does not hold here: {missing}; leave stages at 'auto'")
        if stages == "composed" or missing or (stages == "auto" and self.device.name == "emulator"):
            return None
        return DecodeStages(self.device, self.config, self.dtype)

    def _choose_layers(self, stages: str, attention: str) -> PersistentLayers | None:
        known = stages == "auto" and attention == "auto" and self.device.compute_capability == persistent.MEASURED
        if stages != "persistent" and not known:
            return None
        missing = persistent.what_is_missing(self.device, self.config, self.dtype)
        if stages == "persistent" and missing:
            raise UserError(f"stages='persistent' does not hold here: {missing}; leave stages at 'auto'")
        return None if missing else PersistentLayers(self.device, self.config)

    def reserve(self, num_tokens: int, num_requests: int, max_seq_len: int) -> None:
        if self._paged is not None:
            self._paged.reserve()
        if self._persistent is not None and vars(self)["layers"].__func__ is TunedOps.layers:  # nothing was replaced
            self._persistent.reserve()

    def embed(self, tokens: Array, table: Array, out: Array | None = None) -> Array:
        out = self._out("embed", out, (len(tokens), table.shape[1]))
        self._launch("embed", (len(tokens),), THREADS, tokens, table, out, table.shape[1])
        return out

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array | None = None) -> Array:
        rows, hidden = x.shape
        check_shape("rms_norm: weight", weight, (hidden,))
        out = self._out("rms_norm", out, x.shape)
        if self._vectors_of_rows and hidden % self._vector == 0 and hidden // self._vector <= MOST_THREADS:
            threads = -(-hidden // (32 * self._vector)) * 32
            if rows:
                kernel = self._library.kernel("rms_norm.cu", "rms_norm_vectors")
                kernel((rows,), (threads,), (x, weight, out, hidden, eps))
        else:
            self._launch("rms_norm", (rows,), self._waiting_threads, x, weight, out, hidden, eps)
        return out

    def rope(self, q: Array, k: Array, positions: Array, table: Array) -> None:
        rows, dim = len(q), self.config.head_dim
        heads, kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        check_shape("rope: q", q, (rows, heads * dim))
        check_shape("rope: k", k, (rows, kv_heads * dim))
        check_shape("rope: positions", positions, (rows,))
        check_shape("rope: table", table, (len(table), dim))
        shape = (row_stride(q), row_stride(k), heads, kv_heads, dim)
        self._launch("rope", (rows,), THREADS, q, k, positions, table, *shape)

    def linear(self, x: Array, weight: Array, out: Array | None = None, add: bool = False) -> Array:
        check_shape("linear: weight", weight, (len(weight), x.shape[1]))
        if add and out is None:
            raise UserError("linear: add=True adds to out; give the array")
        out = self._out("linear", out, (len(x), len(weight)))
        self.device.gemm(x, weight, out, add)
        return out

    def silu_mul(self, gate_up: Array, out: Array | None = None) -> Array:
        rows, width = len(gate_up), gate_up.shape[1] // 2
        check_shape("silu_mul: gate_up", gate_up, (rows, 2 * width))
        out = self._out("silu_mul", out, (rows, width))
        columns = THREADS * (VECTOR_BYTES // out.dtype.itemsize)  # of a block
        self._launch("silu_mul", (rows, -(-width // columns)), THREADS, gate_up, out, width)
        return out

    def attention(self, q: Array, kv: Array, meta: StepMeta, out: Array | None = None) -> Array:
        heads, kv_heads, dim = self.config.num_attention_heads, self.config.num_key_value_heads, self.config.head_dim
        requests, width = meta.block_table.shape
        check_shape("attention: q", q, (len(q), heads * dim))
        check_shape("attention: kv", kv, (len(kv), kv_heads, 2, kv.shape[3], dim))
        check_shape("attention: query_start_loc", meta.query_start_loc, (requests + 1,))
        check_shape("attention: seq_lens", meta.seq_lens, (requests,))
        out = self._out("attention", out, (len(q), heads * dim))
        if self._paged is not None and self._holds(kv.shape[3]):
            self._paged(q, kv, meta, out)
            return out
        group = dim // COLUMNS
        threads = group * max(-(-FOLD // group), self._waiting_threads // group)
        shape = (row_stride(q), requests, width, kv.shape[3], kv_heads)
        arrays = (q, kv, meta.query_start_loc, meta.seq_lens, meta.block_table, out)
        self._launch("attention", (len(q), heads), threads, *arrays, *shape, dim**-0.5)
        return out

    def _holds(self, block_size: int) -> bool:
        if self._asked_for in BY_TENSOR_CORES and block_size != BLOCK_SIZE:
            missing = what_is_missing(self.device, self.config, self.dtype, block_size)
            raise _refusal(self._asked_for, missing)
        return block_size == BLOCK_SIZE

    def take_rows(self, x: Array, rows: Array, out: Array | None = None) -> Array:
        out = self._out("take_rows", out, (len(rows), x.shape[1]))
        self._launch("take_rows", (len(rows),), THREADS, x, rows, out, x.shape[1])
        return out

    def write_kv(self, k: Array, v: Array, kv: Array, slots: Array) -> None:
        rows, (_, kv_heads, _, block_size, dim) = len(k), kv.shape
        check_shape("write_kv: k", k, (rows, kv_heads * dim))
        check_shape("write_kv: v", v, (rows, kv_heads * dim))
        check_shape("write_kv: slots", slots, (rows,))
        shape = (row_stride(k), row_stride(v), kv_heads, block_size, dim)
        self._launch("write_kv", (rows,), THREADS, k, v, kv, slots, *shape)

    # ---- stages

    def attn_in(self, x: Array, layer: Any, kv: Array, meta: StepMeta, b: Buffers) -> None:
        fused = self._fused(len(x), layer.qkv, normed=True)
        if fused:
            fused.attn_in(x, layer, kv, meta, b)
        elif self._turns:
            self.rms_norm(x, layer.input_norm, self.config.rms_norm_eps, out=b.normed)
            self.linear(b.normed, layer.qkv, out=b.qkv)
            self._many.rope_kv(b.qkv, kv, meta, b.rope_table)
        else:
            super().attn_in(x, layer, kv, meta, b)

    def attn_out(self, attended: Array, x: Array, layer: Any, b: Buffers) -> None:
        fused = self._fused(len(x), layer.o, normed=False)
        fused.add_product(attended, layer.o, x) if fused else super().attn_out(attended, x, layer, b)

    def mlp_in(self, x: Array, layer: Any, b: Buffers) -> None:
        fused = self._fused(len(x), layer.gate_up, normed=True)
        fused.mlp_in(x, layer, b) if fused else super().mlp_in(x, layer, b)

    def mlp_out(self, x: Array, layer: Any, b: Buffers) -> None:
        fused = self._fused(len(x), layer.down, normed=False)
        fused.add_product(b.activated, layer.down, x) if fused else super().mlp_out(x, layer, b)

    def layers(self, x: Array, weights: Any, cache: KVCache, meta: StepMeta, b: Buffers) -> None:
        """As in Ops; but of the last layer only keys and values, and the rows of meta.last, if given.

        A step of few rows is one kernel, where that holds.
        """
        if self._persistent is not None and self._persistent.fits(len(x), meta, cache):
            self._persistent(x, weights, cache, meta, b)
            return
        if meta.last is None or not self._turns:
            super().layers(x, weights, cache, meta, b)
            return
        *earlier, (layer, kv) = zip(weights.layers, cache.layers, strict=True)
        for each in earlier:
            self.attn_in(x, *each, meta, b)
            self.after_attn_in(x, *each, meta, b)
        self._many.last_layer(self, x, layer, kv, meta, meta.last, b)

    def head(self, x: Array, weights: Any, meta: StepMeta, b: Buffers) -> Array:
        fused = self._fused(len(meta.logits_indices), weights.lm_head, normed=True)
        return fused.head(x, weights, meta, b) if fused else super().head(x, weights, meta, b)

    def _fused(self, rows: int, weight: Array, normed: bool) -> DecodeStages | None:
        """The fused stages, where they hold for a product of so many rows."""
        return self._decode if self._decode is not None and self._decode.fits(rows, weight, normed) else None

    def _launch(self, name: str, grid: tuple[int, ...], threads: int, *args: Any) -> None:
        """Run kernel `name` of the file of that name; an empty batch launches nothing."""
        if all(grid):
            self._library.kernel(f"{name}.cu", name)(grid, (threads,), args)

    def _out(self, op: str, out: Array | None, shape: tuple[int, ...]) -> Array:
        if out is None:
            return self.device.empty(shape, self.dtype)
        check_shape(f"{op}: out", out, shape)
        return out


def _refusal(attention: str, missing: str) -> UserError:
    return UserError(f"attention={attention!r} does not hold here: {missing}; leave attention at 'auto'")
