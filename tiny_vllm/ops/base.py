"""The seam: a Llama forward is written once against these operations; a lesson, a student or a tuned set supplies them.

T tokens of the whole batch are flattened into rows; arrays are row-major. H hidden size, V vocabulary, I intermediate
size, Hq and Hkv query and key/value heads, D head_dim.
Sources: Llama (Touvron et al., 2023), RMSNorm (Zhang and Sennrich, 2019), RoPE (Su et al., 2021), SwiGLU (Shazeer,
2020), GQA (Ainslie et al., 2023), PagedAttention (Kwon et al., 2023).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

from tiny_vllm.device.base import Device
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.types import Array, KVCache, StepMeta

PRIMITIVES = ("embed", "rms_norm", "rope", "linear", "silu_mul", "attention", "take_rows", "write_kv")
STAGES = ("attn_in", "attention", "attn_out", "mlp_in", "mlp_out", "head", "layers")
STAGES_OF_A_LAYER = STAGES[:5]  # what a whole-step `layers` does in one go


class Ops:
    """Primitives, which write into `out` and allocate nothing, and stages, which compose them.

    A set that fuses primitives into a stage declares so in FUSES = {stage: (primitives,)} beside the override. Where
    one of those primitives is replaced, further down the class tree, by `replace` or by assignment, the stage runs its
    composition instead: a fused kernel never hides a student's primitive, nor a fused `layers` somebody's stage.
    """

    FUSES: ClassVar[dict[str, tuple[str, ...]]] = {}
    name: ClassVar[str] = "base"
    graph_safe: ClassVar[bool] = True  # a decode step is launches alone, and the same ones whatever the lengths are

    def __init__(self, device: Device, config: Any, dtype: Any) -> None:
        self.device, self.config, self.dtype = device, config, dtype
        self._replaced: dict[str, Callable[..., Any]] = {}
        self._unfuse()

    def __init_subclass__(cls) -> None:
        """TypeError for a FUSES that would hide a primitive: a stage or a primitive of another name."""
        for stage, fused in vars(cls).get("FUSES", {}).items():
            if stage not in STAGES or stage not in vars(cls) or isinstance(fused, str) or set(fused) - set(PRIMITIVES):
                wanted = f"a stage that {cls.__name__} overrides, and a tuple of its primitives"
                raise TypeError(f"{cls.__name__}.FUSES has {stage!r}: {fused!r}; give {wanted}")

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in PRIMITIVES:
            self._replaced[name] = value
            self._unfuse()

    def reserve(self, num_tokens: int, num_requests: int, max_seq_len: int) -> None:
        """Allocate the scratch that steps of at most this size need; called once, before the first step."""

    # ---- primitives: what chapters teach (out=None allocates, for lessons only)

    def embed(self, tokens: Array, table: Array, out: Array | None = None) -> Array:
        """Rows of the embedding table: tokens (T,) int32, table (V,H) -> out (T,H)."""
        raise NotImplementedError(f"{type(self).__name__} has no embed")

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array | None = None) -> Array:
        """x / sqrt(mean(x^2) + eps) * weight for each row: x (T,H), weight (H,) -> out (T,H)."""
        raise NotImplementedError(f"{type(self).__name__} has no rms_norm")

    def rope(self, q: Array, k: Array, positions: Array, table: Array) -> None:
        """Rotate pairs (i, i + D/2) of each head in place by position * inv_freq[i].

        q (T,Hq*D) and k (T,Hkv*D) may be column views (rows apart); positions (T,) int32;
        table (P,D) float32: cosines in the first half of a row, sines in the second.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rope")

    def linear(self, x: Array, weight: Array, out: Array | None = None, add: bool = False) -> Array:
        """x (T,K) @ weight (N,K) transposed -> out (T,N), sums in float32; add: out += (the residual, beta = 1)."""
        raise NotImplementedError(f"{type(self).__name__} has no linear")

    def silu_mul(self, gate_up: Array, out: Array | None = None) -> Array:
        """silu(gate) * up, silu(z) = z / (1 + exp(-z)): gate_up (T,2I), gate first -> out (T,I)."""
        raise NotImplementedError(f"{type(self).__name__} has no silu_mul")

    def attention(self, q: Array, kv: Array, meta: StepMeta, out: Array | None = None) -> Array:
        """Causal attention over the cache: q (T,Hq*D), a column view; kv one layer of a KVCache -> out (T,Hq*D).

        Row i of request r sees the keys at positions 0 to seq_lens[r] - query_len[r] + i; query head h reads
        key/value head h // (Hq / Hkv); scores are scaled by 1/sqrt(D). A request of length 0 gives rows of zeros.
        """
        raise NotImplementedError(f"{type(self).__name__} has no attention")

    def take_rows(self, x: Array, rows: Array, out: Array | None = None) -> Array:
        """x (T,H), rows (R,) int32 -> out (R,H): logits are computed only where they are needed."""
        raise NotImplementedError(f"{type(self).__name__} has no take_rows")

    def write_kv(self, k: Array, v: Array, kv: Array, slots: Array) -> None:
        """Keys and values (T,Hkv*D), column views, into their slots of one layer's cache; slot -1 is skipped."""
        raise NotImplementedError(f"{type(self).__name__} has no write_kv")

    # ---- stages: what a fused kernel may take over

    def attn_in(self, x: Array, layer: Any, kv: Array, meta: StepMeta, b: Buffers) -> None:
        """Norm, the qkv product, RoPE, cache write; leaves q in b.q."""
        self.rms_norm(x, layer.input_norm, self.config.rms_norm_eps, out=b.normed)
        self.linear(b.normed, layer.qkv, out=b.qkv)
        self.rope(b.q, b.k, meta.positions, b.rope_table)
        self.write_kv(b.k, b.v, kv, meta.slot_mapping)

    def attn_out(self, attended: Array, x: Array, layer: Any, b: Buffers) -> None:
        """The output product, added to the residual stream x (T,H)."""
        self.linear(attended, layer.o, out=x, add=True)

    def mlp_in(self, x: Array, layer: Any, b: Buffers) -> None:
        """Norm, gate and up product, SiLU(gate) * up; leaves the result in b.activated."""
        self.rms_norm(x, layer.post_attention_norm, self.config.rms_norm_eps, out=b.normed)
        self.linear(b.normed, layer.gate_up, out=b.gate_up)
        self.silu_mul(b.gate_up, out=b.activated)

    def mlp_out(self, x: Array, layer: Any, b: Buffers) -> None:
        """The down product, added to the residual stream x (T,H)."""
        self.linear(b.activated, layer.down, out=x, add=True)

    def layers(self, x: Array, weights: Any, cache: KVCache, meta: StepMeta, b: Buffers) -> None:
        """Every layer in turn, on the residual stream x (T,H).

        Only the rows of meta.last are read afterwards, if it is given: a set may spare the others in the last layer.
        """
        for layer, kv in zip(weights.layers, cache.layers, strict=True):
            self.attn_in(x, layer, kv, meta, b)
            self.after_attn_in(x, layer, kv, meta, b)

    def after_attn_in(self, x: Array, layer: Any, kv: Array, meta: StepMeta, b: Buffers) -> None:
        """The rest of a layer."""
        self.attention(b.q, kv, meta, out=b.attended)
        self.attn_out(b.attended, x, layer, b)
        self.mlp_in(x, layer, b)
        self.mlp_out(x, layer, b)

    def head(self, x: Array, weights: Any, meta: StepMeta, b: Buffers) -> Array:
        """The wanted rows, the last norm and the vocabulary product -> b.logits (R,V) float32."""
        self.take_rows(x, meta.logits_indices, out=b.last)
        self.rms_norm(b.last, weights.norm, self.config.rms_norm_eps, out=b.last_normed)
        return self.linear(b.last_normed, weights.lm_head, out=b.logits)

    # ---- replacing a primitive

    def replace(self, **primitives: Callable[..., Any]) -> Ops:
        """A copy of this set with some primitives replaced, e.g. ops.replace(rms_norm=mine)."""
        unknown = sorted(set(primitives) - set(PRIMITIVES))
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no such primitive; the primitives are {', '.join(PRIMITIVES)}")
        other = copy.copy(self)
        other._replaced = dict(self._replaced)
        other._unfuse()  # the copy's stages are bound to the copy
        for name, primitive in primitives.items():
            setattr(other, name, primitive)
        return other

    def _unfuse(self) -> None:
        """Let no fused stage hide a replaced primitive: bind each stage to its first honest implementation."""
        for stage in STAGES:
            if stage not in self._replaced:
                vars(self)[stage] = self._honest(stage).__get__(self)

    def _honest(self, stage: str) -> Any:
        for cls in type(self).__mro__:
            if stage in vars(cls) and not any(self._is_replaced(name, cls) for name in _fused(cls, stage)):
                return vars(cls)[stage]
        raise AssertionError(f"{stage} has no composition")

    def _is_replaced(self, primitive: str, fused_in: type) -> bool:
        return primitive in self._replaced or getattr(type(self), primitive) is not getattr(fused_in, primitive)


def _fused(cls: type, stage: str) -> set[str]:
    """What a class's stage fuses, by itself or in a base's stage that it may call by super()."""
    declared = [vars(base).get("FUSES", {}).get(stage, ()) for base in cls.__mro__ if stage in vars(base)]
    names = {name for fused in declared for name in fused}
    return names | set(STAGES_OF_A_LAYER) if names and stage == "layers" else names
