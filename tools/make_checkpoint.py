#!/usr/bin/env python3
"""Make a random-weight Llama checkpoint in the Hugging Face layout, of any shape.

    python tools/make_checkpoint.py OUT --preset tiny
    python tools/make_checkpoint.py OUT --preset llama-3.2-1b --shards 2
    python tools/make_checkpoint.py OUT --preset tiny --set num_key_value_heads=4 --set vocab_size=1000

The same arguments give the same bytes. The weights are scaled so that the model behaves like a trained one where a
test looks: attention that is neither flat nor one-hot, a residual stream that the layers dominate (or tied embeddings
would make each token predict itself), and logits with a standard deviation of about 3.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout's package, installed or not

from tiny_vllm.errors import UserError
from tiny_vllm.models.safetensors_file import LazyTensor, write_safetensors
from tiny_vllm.models.tokenizer_json import added_tokens_decoder, byte_level_bpe, special_tokens

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "use_cache": True,
}


def llama3_rope(factor: float, original: int) -> dict[str, Any]:
    """The rope_scaling entry of Llama 3.x for a model first trained on `original` positions."""
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "tiny-untied": {"tie_word_embeddings": False},
    "tiny-mha": {"num_key_value_heads": 4},
    "tiny-mqa": {"num_key_value_heads": 1},
    # wider heads than hidden_size / heads: q_proj and o_proj are not square
    "tiny-hd128": {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1},
    # groups of 3, sizes that are no multiple of 32, another eps, no head_dim in the file
    "tiny-odd": {
        "hidden_size": 96,
        "num_attention_heads": 6,
        "intermediate_size": 100,
        "vocab_size": 509,
        "rms_norm_eps": 1e-6,
        "head_dim": None,
        "tie_word_embeddings": False,
    },
    # original length 64, so that the scaling shows within a short prompt
    "tiny-rope3": {"rope_theta": 500000.0, "rope_scaling": llama3_rope(8.0, 64), "max_position_embeddings": 512},
    "llama-3.2-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": llama3_rope(32.0, 8192),
    },
}
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # the last ids of the vocabulary
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHUNK = 1 << 20  # numbers drawn at a time: 4 MB stay in the processor's cache


# ---------------------------------------------------------------- weights


@dataclass(frozen=True)
class Normal:
    """A tensor of normally distributed numbers."""

    shape: tuple[int, ...]
    mean: float
    std: float


def matrix(rows: int, columns: int, gain: float = 1.0) -> Normal:
    """Outputs as large as inputs, times `gain`."""
    return Normal((rows, columns), 0.0, gain / columns**0.5)


def layer_plan(config: dict[str, Any]) -> dict[str, Normal]:
    """The tensors of one layer, in the file's order."""
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    dim = config["head_dim"] or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    return {
        "input_layernorm": Normal((hidden,), 1.0, 0.1),
        "self_attn.q_proj": matrix(q, hidden, 1.5),
        "self_attn.k_proj": matrix(kv, hidden, 1.5),
        "self_attn.v_proj": matrix(kv, hidden),
        "self_attn.o_proj": matrix(hidden, q),
        "post_attention_layernorm": Normal((hidden,), 1.0, 0.1),
        "mlp.gate_proj": matrix(inter, hidden),
        "mlp.up_proj": matrix(inter, hidden),
        "mlp.down_proj": matrix(hidden, inter),
    }


def tensor_plan(config: dict[str, Any]) -> dict[str, Normal]:
    """Every tensor of the checkpoint, in the file's order."""
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    plan = {"model.embed_tokens.weight": Normal((vocab, hidden), 0.0, hidden**-0.5)}
    for i in range(config["num_hidden_layers"]):
        plan |= {f"model.layers.{i}.{name}.weight": spec for name, spec in layer_plan(config).items()}
    plan["model.norm.weight"] = Normal((hidden,), 3.0, 0.3)
    if not config["tie_word_embeddings"]:
        plan["lm_head.weight"] = Normal((vocab, hidden), 0.0, hidden**-0.5)
    return plan


def draw(name: str, spec: Normal, seed: int) -> Iterator[np.ndarray]:
    """The tensor's numbers in bfloat16 pieces; they depend on its name and the seed, not on its neighbours."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    left = math.prod(spec.shape)
    while left:
        piece = rng.standard_normal(min(left, CHUNK), dtype=np.float32)
        piece *= np.float32(spec.std)
        piece += np.float32(spec.mean)
        yield piece.astype(ml_dtypes.bfloat16)
        left -= len(piece)


def assign_shards(tensors: dict[str, LazyTensor], shards: int) -> dict[str, str]:
    """-> {tensor: file}. Consecutive tensors, files of about equal size; fewer files where one tensor is very large."""
    total, done, group = sum(t.nbytes for t in tensors.values()), 0, {}
    for name, tensor in tensors.items():
        group[name] = done * shards // total
        done += tensor.nbytes
    used = sorted(set(group.values()))
    return {n: f"model-{used.index(g) + 1:05d}-of-{len(used):05d}.safetensors" for n, g in group.items()}


def write_weights(out: Path, tensors: dict[str, LazyTensor], shards: int) -> None:
    """model.safetensors, or several files and their index."""
    files = dict.fromkeys(tensors, "model.safetensors") if shards == 1 else assign_shards(tensors, shards)
    total, workers = sum(t.nbytes for t in tensors.values()), os.cpu_count() or 1
    with tqdm(total=total, unit="B", unit_scale=True, disable=total < 100_000_000) as bar:
        for file in sorted(set(files.values())):
            part = {name: tensor for name, tensor in tensors.items() if files[name] == file}
            write_safetensors(out / file, part, workers, on_written=bar.update)
    if shards > 1:
        write_json(out / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": files})


# -------------------------------------------------------------- tokenizer


def byte_alphabet() -> list[str]:
    """GPT-2's visible letter for each of the 256 bytes."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def letter_pairs(count: int) -> list[str]:
    """The first `count` pairs of common letters, each a merge of the BPE."""
    letters = "etaoinshrdlucmwfgypbvkxjqz"
    return [a + b for a in "\u0120" + letters for b in letters][:count]  # U+0120 stands for a space


def specials(vocab_size: int) -> list[dict[str, Any]]:
    """SPECIALS as the last ids of the vocabulary."""
    return special_tokens(dict(enumerate(SPECIALS, start=vocab_size - len(SPECIALS))))


def byte_tokenizer(vocab_size: int) -> dict[str, Any]:
    """tokenizer.json: a byte-level BPE of exactly `vocab_size` tokens (bytes, letter pairs, fillers, specials)."""
    room = vocab_size - 256 - len(SPECIALS)
    pairs = letter_pairs(room)
    fillers = [f"\u0120tok{i}" for i in range(room - len(pairs))]
    tokens = byte_alphabet() + pairs + fillers + SPECIALS
    return byte_level_bpe(tokens, [f"{pair[0]} {pair[1]}" for pair in pairs], specials(vocab_size))


def tokenizer_config(vocab_size: int) -> dict[str, Any]:
    """tokenizer_config.json: the special tokens' roles and the chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "added_tokens_decoder": added_tokens_decoder(specials(vocab_size)),
        "chat_template": CHAT_TEMPLATE,
    }


# --------------------------------------------------------- the whole folder


def make_config(preset: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """The preset's config.json with `overrides`, checked."""
    if unknown := sorted(overrides.keys() - BASE.keys()):
        raise UserError(f"--set {unknown[0]}: no such entry; there are {', '.join(BASE)}")
    config = {**BASE, **PRESETS[preset], **overrides}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % kv_heads:
        raise UserError(f"num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}")
    if config["head_dim"] is None and config["hidden_size"] % heads:
        raise UserError(f"hidden_size={config['hidden_size']} is no multiple of {heads} heads; set head_dim")
    smallest = 256 + len(SPECIALS)
    if config["vocab_size"] < smallest:
        raise UserError(f"vocab_size={config['vocab_size']} has no room for every byte; it must be at least {smallest}")
    return config


def write_json(path: Path, content: object, indent: int | None = 2) -> None:
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def make_checkpoint(
    out: Path, preset: str = "tiny", overrides: dict[str, Any] | None = None, shards: int = 1, seed: int = 0
) -> None:
    """Write a checkpoint of bfloat16 weights into the new or empty folder `out`."""
    config = make_config(preset, overrides or {})
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    plan = tensor_plan(config)
    write_weights(out, {name: LazyTensor(s.shape, partial(draw, name, s, seed)) for name, s in plan.items()}, shards)
    vocab = config["vocab_size"]
    ids = {"bos_token_id": vocab - 3, "eos_token_id": vocab - 1, "pad_token_id": vocab - 3}
    if config["head_dim"] is None:
        del config["head_dim"]
    write_json(out / "config.json", config | ids)
    write_json(out / "generation_config.json", ids)
    write_json(out / "tokenizer.json", byte_tokenizer(vocab), indent=None)
    write_json(out / "tokenizer_config.json", tokenizer_config(vocab))


def setting(text: str) -> tuple[str, Any]:
    """For example "vocab_size=1000" -> ("vocab_size", 1000)."""
    key, _, value = text.partition("=")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=JSON, such as vocab_size=1000") from None


def natural(text: str, low: int = 0) -> int:
    """A whole number of at least `low`."""
    if not text.isdecimal() or int(text) < low:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {low}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder to write, new or empty")
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument(
        "--set", type=setting, action="append", default=[], metavar="KEY=JSON", help="override a config.json entry"
    )
    parser.add_argument("--shards", type=partial(natural, low=1), default=1, help="files to spread the weights over")
    parser.add_argument("--seed", type=natural, default=0)
    args = parser.parse_args(arguments)
    try:
        make_checkpoint(args.out, args.preset, dict(args.set), args.shards, args.seed)
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
