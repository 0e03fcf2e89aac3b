"""From a checkpoint's tensors to the arrays of a forward pass: checked, converted, q/k/v and gate/up stacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.errors import UserError
from tiny_vllm.models.checkpoint import Checkpoint
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.types import Array

Shape = tuple[int, ...]
EMBED, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
# The checkpoint's tensors behind each array of a layer, stacked in this order
LAYER_TENSORS = {
    "input_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "post_attention_norm": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
MAX_NAMED = 10  # how many wrong tensors one error lists


@dataclass
class LayerWeights:
    """One layer: H hidden size, I intermediate size, Hq and Hkv heads, D head_dim. Linear weights: (outputs, inputs).

    input_norm, post_attention_norm (H,); qkv ((Hq+2Hkv)*D, H): rows of q, k, v; o (H, Hq*D);
    gate_up (2I, H): rows of gate, then up; down (H, I).
    """

    input_norm: Array
    qkv: Array
    o: Array
    post_attention_norm: Array
    gate_up: Array
    down: Array


@dataclass
class LlamaWeights:
    """embed (V,H), the layers, norm (H,), lm_head (V,H), which is the very array embed where the two are tied."""

    embed: Array
    layers: list[LayerWeights]
    norm: Array
    lm_head: Array


def load_weights(
    folder: str | Path,
    config: ModelConfig,
    device: Device,
    dtype: Any,
    progress: Callable[[int, int], None] | None = None,
) -> LlamaWeights:
    """Every tensor of a folder's safetensors on the device, converted to dtype (bfloat16, float16 or float32).

    One array is converted at a time. progress(done, total), in bytes on the device, is called after each.
    UserError names files that are damaged or absent, and all tensors that are missing, unexpected or of another shape.
    """
    checkpoint = Checkpoint(Path(folder))
    wanted = tensor_shapes(config)
    _check(checkpoint, wanted, config.tie_word_embeddings)
    loader = _Loader(checkpoint, wanted, device, np.dtype(dtype), progress)
    embed = loader.load(EMBED)
    layers = [_load_layer(loader, index) for index in range(config.num_hidden_layers)]
    norm = loader.load(NORM)
    return LlamaWeights(embed, layers, norm, embed if config.tie_word_embeddings else loader.load(HEAD))


def weight_bytes(weights: LlamaWeights) -> int:
    """Bytes that one decode step reads: every tensor once, and the head; of an untied embedding, only a row a token."""
    layers = sum(getattr(layer, field.name).nbytes for layer in weights.layers for field in fields(layer))
    return int(layers + weights.norm.nbytes + weights.lm_head.nbytes)


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Names and shapes of a Llama checkpoint's tensors, as Hugging Face stores them."""
    hidden, inter, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * dim, config.num_key_value_heads * dim
    layer: dict[str, Shape] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inter, hidden),
        "mlp.up_proj": (inter, hidden),
        "mlp.down_proj": (hidden, inter),
    }
    shapes: dict[str, Shape] = {EMBED: (config.vocab_size, hidden), NORM: (hidden,)}
    for index in range(config.num_hidden_layers):
        shapes |= {_layer_name(index, tensor): shape for tensor, shape in layer.items()}
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


def _layer_name(index: int, tensor: str) -> str:
    return f"model.layers.{index}.{tensor}.weight"


def _load_layer(loader: _Loader, index: int) -> LayerWeights:
    names = {array: [_layer_name(index, tensor) for tensor in tensors] for array, tensors in LAYER_TENSORS.items()}
    return LayerWeights(**{array: loader.load(*parts) for array, parts in names.items()})


class _Loader:
    """Reads, converts, stacks and hands to the device."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        shapes: dict[str, Shape],
        device: Device,
        dtype: np.dtype,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.checkpoint, self.shapes, self.device, self.dtype = checkpoint, shapes, device, dtype
        self.progress, self.done = progress, 0
        self.total = sum(int(np.prod(shape)) for shape in shapes.values()) * dtype.itemsize

    def load(self, *names: str) -> Array:
        """The named tensors, one above the other, as one array on the device."""
        rows = sum(self.shapes[name][0] for name in names)
        array = self.device.empty((rows, *self.shapes[names[0]][1:]), self.dtype)
        start = 0
        for name in names:
            part = array[start : start + self.shapes[name][0]]
            self._write(name, part)
            start += len(part)
        if isinstance(array, np.ndarray):
            array.flags.writeable = False  # weights never change: the emulator may keep a widened copy
        self.done += array.nbytes
        if self.progress:
            self.progress(self.done, self.total)
        return array

    def _write(self, name: str, target: Array) -> None:
        """One tensor into its place: straight from the file where the type is the same, else through host memory."""
        source = self.checkpoint.read(name)
        if isinstance(target, np.ndarray):
            _convert(source, target, name)
        elif source.dtype == target.dtype:
            self.device.copy_in(target, source)
        else:
            host = np.empty(source.shape, self.dtype)
            _convert(source, host, name)
            self.device.copy_in(target, host)


def _convert(source: np.ndarray, target: np.ndarray, name: str) -> None:
    """Copy with a change of type, rounding to nearest even; UserError where a finite value becomes infinite."""
    if source.dtype == ml_dtypes.bfloat16 and target.dtype == np.float32:
        bits = target.view(np.uint32)  # a bfloat16 is the upper half of a float32
        np.left_shift(source.view(np.uint16), 16, out=bits, dtype=np.uint32)
        return
    with np.errstate(over="ignore"):
        target[...] = source.astype(target.dtype, copy=False)
    narrower = source.dtype != target.dtype and target.dtype != np.float32
    if narrower and not np.isfinite(target).all():
        overflow = np.isinf(target) & np.isfinite(source)
        if overflow.any():
            largest = float(np.abs(source[overflow].astype(np.float32)).max())
            raise UserError(f"{name} holds {largest:g}, which {target.dtype} cannot; load the model as float32")


def _check(checkpoint: Checkpoint, wanted: dict[str, Shape], tied: bool) -> None:
    """Refuse a checkpoint that is not exactly the model that its config.json describes."""
    found = dict(checkpoint.shapes)
    optional = {HEAD: wanted[EMBED]} if tied else {}
    wrong = [f"{name} is missing" for name in wanted if name not in found]
    for name, shape in found.items():
        expected = (wanted | optional).get(name)
        if expected is None and not name.endswith("rotary_emb.inv_freq"):
            wrong.append(f"{name} is unexpected")
        elif expected is not None and shape != expected:
            wrong.append(f"{name} has shape {list(shape)}, wanted {list(expected)}")
    if wrong:
        more = f", and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
        listed = ", ".join(wrong[:MAX_NAMED])
        raise UserError(f"{checkpoint.folder}: the tensors are not those of config.json: {listed}{more}")
    checkpoint.check_dtypes([name for name in found if name in wanted or name in optional])
    if tied and HEAD in found and not _same(checkpoint.read(HEAD), checkpoint.read(EMBED)):
        raise UserError(
            f"{checkpoint.folder}: config.json ties the head to the embedding, yet {HEAD} differs from {EMBED}; "
            "set tie_word_embeddings to false or remove the tensor"
        )


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and bool((a.view(np.uint8) == b.view(np.uint8)).all())
