"""config.json of a Hugging Face folder, read strictly: what this engine cannot run is refused by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny_vllm.errors import UserError
from tiny_vllm.models.jsonfile import Settings, read_json
from tiny_vllm.models.rope import ROPE_TYPES, RopeConfig, rope_table

__all__ = ["ModelConfig", "RopeConfig", "rope_table"]

DTYPES = ("bfloat16", "float16", "float32")
MIN_HEAD_DIM, MAX_HEAD_DIM = 16, 256
MAX_LAYERS = 1024
# Settings of other models that change the result: one value is supported, and absent means that value.
ONLY = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
    "partial_rotary_factor": 1.0,
    "sliding_window": None,
    "quantization_config": None,
}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Llama model, under the names of its config.json.

    head_dim is hidden_size / num_attention_heads unless given. dtype: what the checkpoint says it was saved in.
    eos_token_ids: the ids that end an answer, from generation_config.json (often the longer list), else config.json.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_folder(cls, path: str | Path) -> ModelConfig:
        """Read config.json and, if present, generation_config.json; UserError names what is wrong or unsupported."""
        folder = Path(path)
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; give a model folder that holds config.json")
        file = folder / "config.json"
        settings = Settings(file, read_json(file))
        _refuse_other_models(settings)
        return cls(
            vocab_size=settings.integer("vocab_size"),
            hidden_size=settings.integer("hidden_size"),
            intermediate_size=settings.integer("intermediate_size"),
            num_hidden_layers=settings.integer("num_hidden_layers", high=MAX_LAYERS),
            **_heads(settings),
            rms_norm_eps=settings.number("rms_norm_eps"),
            rope=_rope(settings),
            max_position_embeddings=settings.integer("max_position_embeddings"),
            tie_word_embeddings=settings.flag("tie_word_embeddings", default=False),
            dtype=_dtype(settings),
            bos_token_id=settings.integer("bos_token_id", default=None, low=0),
            eos_token_ids=_eos_token_ids(settings, folder / "generation_config.json"),
        )


def _refuse_other_models(settings: Settings) -> None:
    if settings.value("model_type") != "llama":
        raise settings.refuse("model_type", "supported: llama")
    if settings.value("architectures", ["LlamaForCausalLM"]) != ["LlamaForCausalLM"]:
        raise settings.refuse("architectures", 'supported: ["LlamaForCausalLM"]')
    for key, only in ONLY.items():
        if settings.value(key, only) != only:
            way_out = "quantized checkpoints are not read, give the bfloat16 or float16 one" if "quant" in key else ""
            raise settings.refuse(key, way_out or f"supported: {json.dumps(only)}")


def _heads(settings: Settings) -> dict[str, int]:
    """num_attention_heads, num_key_value_heads and head_dim, which must fit one another and the kernels."""
    heads, hidden = settings.integer("num_attention_heads"), settings.integer("hidden_size")
    kv_heads = settings.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise settings.refuse("num_key_value_heads", f"it should divide num_attention_heads, {heads}")
    head_dim = settings.integer("head_dim", default=None)
    if head_dim is None and hidden % heads:
        raise settings.refuse(
            "hidden_size", f"without a head_dim it should be a multiple of num_attention_heads, {heads}"
        )
    head_dim = head_dim or hidden // heads
    if not MIN_HEAD_DIM <= head_dim <= MAX_HEAD_DIM or head_dim % 8:
        limits = f"supported: multiples of 8 from {MIN_HEAD_DIM} to {MAX_HEAD_DIM}"
        raise UserError(f"{settings.file}: head_dim is {head_dim}; {limits}")
    return {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}


def _rope(settings: Settings) -> RopeConfig:
    """Either schema: rope_theta and rope_scaling, or rope_parameters (transformers 5), which holds the theta too."""
    theta = settings.number("rope_theta", default=10000.0)
    sections = [settings.section("rope_parameters"), settings.section("rope_scaling")]
    found = [_rope_section(section, theta) for section in sections if section is not None]
    if len(found) == 2 and found[0] != found[1]:
        raise settings.refuse("rope_scaling", "it contradicts rope_parameters")
    return found[0] if found else RopeConfig(theta=theta)


def _rope_section(settings: Settings, theta: float) -> RopeConfig:
    key = "rope_type" if "rope_type" in settings.data or "type" not in settings.data else "type"
    untyped = settings.data.keys() & {"factor", "low_freq_factor", "high_freq_factor"}
    rope_type = settings.value(key) if untyped else settings.value(key, "default")
    if rope_type not in ROPE_TYPES:
        raise settings.refuse(key, f"supported: {', '.join(ROPE_TYPES)}")
    if settings.number("partial_rotary_factor", default=1.0) != 1.0:
        raise settings.refuse("partial_rotary_factor", "supported: 1.0")
    theta = settings.number("rope_theta", default=theta)
    if rope_type == "default":
        return RopeConfig(theta=theta)
    if rope_type == "linear":
        return RopeConfig(theta=theta, rope_type="linear", factor=settings.number("factor"))
    return _llama3(settings, theta)


def _llama3(settings: Settings, theta: float) -> RopeConfig:
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    if low >= high:
        raise settings.refuse("low_freq_factor", f"it should be less than high_freq_factor, {high:g}")
    context = settings.integer("original_max_position_embeddings")
    return RopeConfig(theta, "llama3", settings.number("factor"), low, high, context)


def _dtype(settings: Settings) -> str:
    """`dtype` (transformers 5) or `torch_dtype`; where neither is given, float32, as Hugging Face has it."""
    key = "dtype" if settings.value("dtype", None) is not None else "torch_dtype"
    dtype = settings.value(key, "float32")
    if dtype not in DTYPES:
        raise settings.refuse(key, f"supported: {', '.join(DTYPES)}")
    return dtype


def _eos_token_ids(settings: Settings, generation_file: Path) -> tuple[int, ...]:
    sources = [settings]
    if generation_file.exists():
        sources.insert(0, Settings(generation_file, read_json(generation_file)))
    for source in sources:
        value: Any = source.value("eos_token_id", None)
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            if not all(type(item) is int and item >= 0 for item in ids):
                raise source.refuse("eos_token_id", "it should be a token id or a list of token ids")
            return tuple(ids)
    return ()
