"""Checkpoints: the bits that arrive, and every way in which a folder can be wrong."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.conftest import DATA
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.weights import EMBED, HEAD, LlamaWeights, load_weights, tensor_shapes, weight_bytes

TINY = DATA / "tiny" / "tiny"
DTYPES = ("bfloat16", "float16", "float32")
Tensors = dict[str, np.ndarray]


class Host:
    """As much of a device as loading needs, its arrays NumPy's."""

    def empty(self, shape: Any, dtype: Any) -> Any:
        return np.full(np.prod(shape) * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)


class FarArray:
    """An array of a device with a memory of its own."""

    def __init__(self, there: np.ndarray) -> None:
        self.there, self.dtype, self.nbytes = there, there.dtype, there.nbytes

    def __getitem__(self, rows: slice) -> FarArray:
        return FarArray(self.there[rows])

    def __len__(self) -> int:
        return len(self.there)


class Far(Host):
    """A device that is reached by copies alone."""

    def empty(self, shape: Any, dtype: Any) -> Any:
        return FarArray(super().empty(shape, dtype))

    def copy_in(self, target: FarArray, host: np.ndarray) -> None:
        assert host.shape == target.there.shape and host.dtype == target.there.dtype
        target.there[...] = host


def load(folder: Path, dtype: Any = "float32", config: ModelConfig | None = None, **settings: Any) -> LlamaWeights:
    return load_weights(folder, config or ModelConfig.from_folder(folder), Host(), dtype, **settings)  # type: ignore[arg-type]


def stored(folder: Path) -> Tensors:
    """All tensors of a folder, by the library's own reader of whole files."""
    tensors: Tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors


def same_bits(got: Any, wanted: Any) -> None:
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    np.testing.assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))


def random_tensors(config: ModelConfig, rng: np.random.Generator, dtype: str) -> Tensors:
    shapes = tensor_shapes(config).items()
    return {name: (3 * rng.standard_normal(shape)).astype(dtype) for name, shape in shapes}


def make(folder: Path, change: Callable[[Tensors], Any] = lambda tensors: None, source: Path = TINY) -> Path:
    """A copy of a tiny checkpoint in one file whose tensors `change` may edit."""
    tensors = stored(source)
    change(tensors)
    shutil.copy(source / "config.json", folder)
    save_file(tensors, folder / "model.safetensors")
    return folder


def error(*args: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(*args, **settings)
    return str(caught.value)


# ---- what arrives


def test_every_tensor_of_the_tiny_checkpoints(tiny_folder: Path) -> None:
    tensors, weights = stored(tiny_folder), load(tiny_folder, "bfloat16")
    same_bits(weights.embed, tensors["model.embed_tokens.weight"])
    same_bits(weights.norm, tensors["model.norm.weight"])
    if "lm_head.weight" in tensors:
        same_bits(weights.lm_head, tensors["lm_head.weight"])
    else:
        assert weights.lm_head is weights.embed
    assert len(weights.layers) == 2
    for index, layer in enumerate(weights.layers):
        at = {name.removeprefix(f"model.layers.{index}."): tensor for name, tensor in tensors.items()}
        q, k, v = (at[f"self_attn.{name}_proj.weight"] for name in "qkv")
        same_bits(layer.qkv, np.concatenate([q, k, v]))
        same_bits(layer.o, at["self_attn.o_proj.weight"])
        same_bits(layer.gate_up, np.concatenate([at["mlp.gate_proj.weight"], at["mlp.up_proj.weight"]]))
        same_bits(layer.down, at["mlp.down_proj.weight"])
        same_bits(layer.input_norm, at["input_layernorm.weight"])
        same_bits(layer.post_attention_norm, at["post_attention_layernorm.weight"])


def test_a_sharded_checkpoint_is_the_whole_one() -> None:
    whole, sharded = load(DATA / "tiny" / "tiny-untied"), load(DATA / "tiny" / "tiny-untied-sharded")
    same_bits(sharded.lm_head, whole.lm_head)
    for one, other in zip(whole.layers, sharded.layers):
        for field in dataclasses.fields(one):
            same_bits(getattr(one, field.name), getattr(other, field.name))


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_conversion_rounds_to_nearest_even(tmp_path: Path, rng: np.random.Generator, source: str, target: str) -> None:
    config = ModelConfig.from_folder(TINY)
    tensors = random_tensors(config, rng, source)
    tensors[EMBED].reshape(-1)[:6] = [0.0, -0.0, 1e-7, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11]  # zeros, subnormal, ties
    shutil.copy(TINY / "config.json", tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    weights = load(tmp_path, target)
    # float64 is exact for all three, and ml_dtypes and NumPy round from it once
    same_bits(weights.embed, tensors[EMBED].astype(np.float64).astype(target))
    same_bits(weights.layers[1].down, tensors["model.layers.1.mlp.down_proj.weight"].astype(np.float64).astype(target))


def test_ties_go_to_even_by_hand(tmp_path: Path) -> None:
    def float32(tensors: Tensors) -> None:
        tensors[EMBED] = tensors[EMBED].astype(np.float32)
        tensors[EMBED][0, :4] = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -(1 + 2**-8)]

    got = load(make(tmp_path, float32), "bfloat16").embed[0, :4].astype(np.float32)
    np.testing.assert_array_equal(got, [1, 1 + 2**-6, 1 + 2**-7, -1])


@pytest.mark.parametrize(
    ("stored_as", "target", "value"),
    [("float32", "float16", 70000.0), ("bfloat16", "float16", -1e30), ("float32", "bfloat16", 3.4e38)],
)
def test_overflow_is_named(tmp_path: Path, stored_as: str, target: str, value: float) -> None:
    name = "model.layers.1.mlp.down_proj.weight"

    def grow(tensors: Tensors) -> None:
        tensors[name] = tensors[name].astype(stored_as)
        tensors[name][3, 5] = value

    words = error(make(tmp_path, grow), target)
    assert words.startswith(f"{name} holds ") and f"which {target} cannot; load the model as float32" in words
    load(tmp_path, "float32")


def test_infinities_that_are_stored_stay(tmp_path: Path) -> None:
    def poison(tensors: Tensors) -> None:
        tensors["model.norm.weight"][:2] = [np.inf, np.nan]

    norm = load(make(tmp_path, poison), "float16").norm
    assert np.isinf(norm[0]) and np.isnan(norm[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_device_with_its_own_memory_gets_the_same_bits(dtype: str) -> None:
    config = ModelConfig.from_folder(TINY)
    here, there = load(TINY, dtype), load_weights(TINY, config, Far(), dtype)  # type: ignore[arg-type]
    same_bits(there.embed.there, here.embed)
    for one, other in zip(here.layers, there.layers, strict=True):
        for field in dataclasses.fields(one):
            same_bits(getattr(other, field.name).there, getattr(one, field.name))


def test_weights_are_read_only() -> None:
    weights = load(TINY)
    for array in (weights.embed, weights.norm, weights.layers[0].qkv, weights.layers[1].input_norm):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_progress_ends_at_its_total() -> None:
    seen: list[tuple[int, int]] = []
    weights = load(TINY, "bfloat16", progress=lambda done, total: seen.append((done, total)))
    total = (
        weights.embed.nbytes
        + weights.norm.nbytes
        + sum(getattr(layer, field.name).nbytes for layer in weights.layers for field in dataclasses.fields(layer))
    )
    assert seen[-1] == (total, total) and {t for _, t in seen} == {total}
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


@pytest.mark.parametrize("name", ["tiny", "tiny-untied"])
def test_weight_bytes(name: str) -> None:
    """H 64, I 128, V 512, 4 query and 2 key/value heads of 16, two layers; an untied embedding is read by rows."""
    layer = 64 + (64 + 32 + 32) * 64 + 64 * 64 + 64 + 2 * 128 * 64 + 64 * 128
    assert weight_bytes(load(DATA / "tiny" / name, "bfloat16")) == 2 * (2 * layer + 64 + 512 * 64)
    assert weight_bytes(load(DATA / "tiny" / name, "float32")) == 4 * (2 * layer + 64 + 512 * 64)


# ---- tied and untied heads


def test_tied_with_a_head_that_is_the_embedding(tmp_path: Path) -> None:
    weights = load(make(tmp_path, lambda tensors: tensors.update({HEAD: tensors[EMBED].copy()})))
    assert weights.lm_head is weights.embed


def test_tied_with_a_head_of_its_own_is_refused(tmp_path: Path) -> None:
    words = error(make(tmp_path, lambda tensors: tensors.update({HEAD: tensors[EMBED] * 2})))
    assert "ties the head to the embedding, yet lm_head.weight differs" in words
    assert "set tie_word_embeddings to false" in words


def test_untied_needs_a_head(tmp_path: Path) -> None:
    config = dataclasses.replace(ModelConfig.from_folder(TINY), tie_word_embeddings=False)
    assert "lm_head.weight is missing" in error(TINY, config=config)


def test_rotary_buffers_are_ignored(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    load(make(tmp_path, lambda tensors: tensors.update({name: np.ones(8, np.float32)})))


# ---- folders that are wrong


def test_all_wrong_tensors_in_one_error(tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        del tensors["model.norm.weight"]
        del tensors["model.layers.1.self_attn.k_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(64, np.float32)
        tensors["model.layers.0.mlp.down_proj.weight"] = np.zeros((128, 64), np.float32)

    words = error(make(tmp_path, spoil))
    assert words.startswith(f"{tmp_path}: ")
    assert "model.norm.weight is missing" in words and "model.layers.1.self_attn.k_proj.weight is missing" in words
    assert "model.layers.0.self_attn.q_proj.bias is unexpected" in words
    assert "model.layers.0.mlp.down_proj.weight has shape [128, 64], wanted [64, 128]" in words
    assert "more" not in words


def test_a_long_list_is_cut() -> None:
    config = dataclasses.replace(ModelConfig.from_folder(TINY), num_hidden_layers=4)
    words = error(TINY, config=config)
    assert words.count("is missing") == 10 and words.endswith(", and 8 more")


def test_types_that_are_not_weights(tmp_path: Path) -> None:
    name = "model.norm.weight"
    words = error(make(tmp_path, lambda tensors: tensors.update({name: np.ones(64, np.int8)})))
    assert words == f"{tmp_path}: {name} has the type I8; supported: BF16, F16, F32"


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_a_file_cut_short(tmp_path: Path, keep: int) -> None:
    file = make(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    words = error(tmp_path)
    assert words.startswith(f"{file} cannot be read as safetensors") and "download it again" in words


def test_a_pointer_in_place_of_the_file(tmp_path: Path) -> None:
    file = make(tmp_path) / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 34\n")
    assert "cannot be read as safetensors" in error(tmp_path)


def index(folder: Path, content: Any) -> Path:
    for file in (DATA / "tiny" / "tiny-untied-sharded").iterdir():
        shutil.copy(file, folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    return folder


def test_wrong_indices(tmp_path: Path) -> None:
    assert "weight_map is null; it should map tensor names" in error(index(tmp_path, {}))
    assert "weight_map is {}; it should map tensor names" in error(index(tmp_path, {"weight_map": {}}))
    assert "it should map tensor names" in error(index(tmp_path, {"weight_map": {"a": 1}}))
    words = error(index(tmp_path, {"weight_map": {EMBED: "model-00009-of-00003.safetensors"}}))
    assert "names model-00009-of-00003.safetensors, which is not in the folder; download it too" in words


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    shutil.copy(TINY / "config.json", tmp_path)
    for name in ("a.safetensors", "b.safetensors"):
        save_file({EMBED: np.ones((512, 64), np.float32)}, tmp_path / name)
    weight_map = {EMBED: "a.safetensors", "x": "b.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert f"b.safetensors holds {EMBED}, and so does another file" in error(tmp_path)


def test_no_safetensors(tmp_path: Path) -> None:
    config = ModelConfig.from_folder(TINY)
    (tmp_path / "pytorch_model.bin").touch()
    assert error(tmp_path, config=config).startswith(f"{tmp_path} has neither model.safetensors nor")
    assert error(tmp_path / "x", config=config).endswith(
        "x is not a folder; give a model folder that holds model.safetensors"
    )


def test_bfloat16_is_ml_dtypes() -> None:
    assert load(TINY, ml_dtypes.bfloat16).embed.dtype == ml_dtypes.bfloat16
