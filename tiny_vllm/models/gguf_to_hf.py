"""Turns a Llama GGUF file into a Hugging Face checkpoint folder in bfloat16.

Two things are undone. GGUF rotates neighbouring pairs (0,1), (2,3), ... of a head in RoPE, Hugging Face pairs i with
i + head_dim/2: llama.cpp reorders the rows of q and k when it converts, so they are ordered back here. And the
tokenizer's tables, which GGUF keeps as metadata, become tokenizer.json again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tiny_vllm.errors import UserError
from tiny_vllm.models.gguf import GgufFile, GgufTensor
from tiny_vllm.models.safetensors_file import LazyTensor, write_safetensors
from tiny_vllm.models.tokenizer_json import BYTE_LEVEL, DIGITS, added_tokens_decoder, byte_level_bpe, special_tokens

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # tokenizer.ggml.token_type of <|im_start|> and its like


def write_hf_folder(gguf: GgufFile, folder: Path, on_written: Callable[[int], object] = lambda nbytes: None) -> None:
    """Write model.safetensors, config.json, generation_config.json, tokenizer.json, tokenizer_config.json.

    folder must exist. on_written(nbytes) is called after each tensor. Raises UserError for a model or a tokenizer
    that is not of the kind written here.
    """
    config = model_config(gguf)
    files = {
        "config.json": config,
        "generation_config.json": {"_from_model_config": True, **_token_ids(gguf.metadata)},
        "tokenizer.json": tokenizer(gguf.metadata),
        "tokenizer_config.json": tokenizer_config(gguf.metadata),
    }
    for name, content in files.items():
        indent = None if name == "tokenizer.json" else 2
        text = json.dumps(content, indent=indent, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
    write_safetensors(folder / "model.safetensors", _tensors(gguf, config), on_written=on_written)


def _tensors(gguf: GgufFile, config: dict[str, Any]) -> dict[str, LazyTensor]:
    """Every tensor under its Hugging Face name, in the file's order, made when it is written."""
    shapes = _shapes(config)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    result = {}
    for name, tensor in gguf.tensors.items():
        hf_name, part = _hf_name(name)
        wanted = shapes.get(part, (config["hidden_size"],))
        if tensor.shape != wanted:
            raise UserError(f"tensor {name} has the shape {tensor.shape}; the file's own sizes make it {wanted}")
        result[hf_name] = LazyTensor(wanted, partial(_bfloat16, tensor, heads.get(part)))
    return result


def _bfloat16(tensor: GgufTensor, heads: int | None) -> list[np.ndarray]:
    weight = tensor.dequantise()
    return [(unpermute(weight, heads) if heads else weight).astype(ml_dtypes.bfloat16)]


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """The shape of each matrix; what is not named is a norm, (hidden,)."""
    vocab, hidden, inter = config["vocab_size"], config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    return {
        "token_embd": (vocab, hidden),
        "output": (vocab, hidden),
        "attn_q": (q, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, q),
        "ffn_gate": (inter, hidden),
        "ffn_up": (inter, hidden),
        "ffn_down": (hidden, inter),
    }


def _hf_name(name: str) -> tuple[str, str]:
    """For example "blk.3.attn_q.weight" -> ("model.layers.3.self_attn.q_proj.weight", "attn_q")."""
    if name in TOP_NAMES:
        return TOP_NAMES[name], name.removesuffix(".weight")
    match name.split("."):
        case ["blk", layer, part, "weight"] if layer.isdecimal() and part in LAYER_NAMES:
            return f"model.layers.{int(layer)}.{LAYER_NAMES[part]}.weight", part
    raise UserError(f"tensor {name} has no place in a Llama model")


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a q or k projection, (heads * head_dim, hidden): from neighbouring pairs to two halves of each head."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _get(metadata: dict[str, Any], key: str) -> Any:
    if key not in metadata:
        raise UserError(f"the GGUF file has no {key}")
    return metadata[key]


def model_config(gguf: GgufFile) -> dict[str, Any]:
    """config.json of a plain Llama model."""
    meta = gguf.metadata
    architecture = _get(meta, "general.architecture")
    if architecture != "llama":
        raise UserError(f"the GGUF file holds a {architecture} model; only llama is converted")
    scaling = [key for key in meta if key.startswith("llama.rope.scaling")]
    if scaling:
        raise UserError(f"the GGUF file scales RoPE ({scaling[0]}), which is not converted")
    heads, hidden = _get(meta, "llama.attention.head_count"), _get(meta, "llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": hidden,
        "intermediate_size": _get(meta, "llama.feed_forward_length"),
        "num_hidden_layers": _get(meta, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "head_dim": meta.get("llama.attention.key_length", hidden // heads),
        "vocab_size": len(_get(meta, "tokenizer.ggml.tokens")),
        "max_position_embeddings": _get(meta, "llama.context_length"),
        "rms_norm_eps": _get(meta, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.get("llama.rope.freq_base", 10000.0),
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "use_cache": True,
        **_token_ids(meta),
    }


def _token_ids(metadata: dict[str, Any]) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    keys = {name: f"tokenizer.ggml.{key}_token_id" for name, key in names.items()}
    return {name: metadata[key] for name, key in keys.items() if key in metadata}


def _added_tokens(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    tokens, types = _get(metadata, "tokenizer.ggml.tokens"), _get(metadata, "tokenizer.ggml.token_type")
    return special_tokens({i: tokens[i] for i, kind in enumerate(types) if kind == CONTROL_TOKEN})


def tokenizer(metadata: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE that adds no beginning-of-sequence token."""
    model, splitter = _get(metadata, "tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", False)
    if model != "gpt2" or splitter not in ("smollm", "gpt-2", "default") or adds_bos:
        raise UserError(
            f"the tokenizer {model}/{splitter} of the GGUF file (adds BOS: {adds_bos}) is not converted; "
            "gpt2/smollm without BOS is"
        )
    return byte_level_bpe(
        _get(metadata, "tokenizer.ggml.tokens"),
        _get(metadata, "tokenizer.ggml.merges"),
        _added_tokens(metadata),
        {"type": "Sequence", "pretokenizers": [DIGITS, BYTE_LEVEL] if splitter == "smollm" else [BYTE_LEVEL]},
        {**BYTE_LEVEL, "add_prefix_space": True},
    )


def tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json. The class is the plain fast one: GPT2Tokenizer would drop the splitting of digits."""
    tokens = _get(metadata, "tokenizer.ggml.tokens")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": _get(metadata, "llama.context_length"),
        "added_tokens_decoder": added_tokens_decoder(_added_tokens(metadata)),
        "chat_template": metadata.get("tokenizer.chat_template"),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        if f"tokenizer.ggml.{key}_token_id" in metadata:
            config[f"{name}_token"] = tokens[metadata[f"tokenizer.ggml.{key}_token_id"]]
    return config


def size_in_bfloat16(gguf: GgufFile) -> int:
    """Bytes of all tensors once converted, for a progress bar."""
    return sum(2 * math.prod(tensor.shape) for tensor in gguf.tensors.values())
