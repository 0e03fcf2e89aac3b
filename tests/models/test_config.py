"""config.json: what is read, what is refused and in which words; RoPE against an independent formula."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import DATA
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig, RopeConfig, rope_table

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 96,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 509,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500000.0,
    "eos_token_id": 7,
    "bos_token_id": 1,
}
LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
ABSENT = object()


def write(folder: Path, generation: Any = None, **changes: Any) -> Path:
    """A model folder whose config.json is BASE with some keys changed or, by ABSENT, left out."""
    data = {key: value for key, value in {**BASE, **changes}.items() if value is not ABSENT}
    (folder / "config.json").write_text(json.dumps(data))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def read(folder: Path, generation: Any = None, **changes: Any) -> ModelConfig:
    return ModelConfig.from_folder(write(folder, generation, **changes))


def test_every_field(tmp_path: Path) -> None:
    expected = ModelConfig(
        vocab_size=509,
        hidden_size=96,
        intermediate_size=100,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        rope=RopeConfig(theta=500000.0),
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        dtype="bfloat16",
        bos_token_id=1,
        eos_token_ids=(7,),
    )
    assert read(tmp_path) == expected
    with pytest.raises(dataclasses.FrozenInstanceError):
        expected.vocab_size = 1  # type: ignore[misc]


def test_tiny_checkpoints(tiny_folder: Path) -> None:
    config = ModelConfig.from_folder(tiny_folder)
    data = json.loads((tiny_folder / "config.json").read_text())
    for key in ("vocab_size", "hidden_size", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings"):
        assert getattr(config, key) == data[key]
    assert config.head_dim == data.get("head_dim", data["hidden_size"] // data["num_attention_heads"])
    assert config.rope.rope_type == ("llama3" if tiny_folder.name == "tiny-rope3" else "default")
    assert config.eos_token_ids == (data["eos_token_id"],)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"head_dim": 128}, "head_dim", 128),
        ({"head_dim": None}, "head_dim", 16),
        ({"num_key_value_heads": ABSENT}, "num_key_value_heads", 6),
        ({"architectures": ABSENT}, "vocab_size", 509),
        ({"tie_word_embeddings": True}, "tie_word_embeddings", True),
        ({"torch_dtype": "float16"}, "dtype", "float16"),
        ({"torch_dtype": ABSENT, "dtype": "float16"}, "dtype", "float16"),
        ({"dtype": "float32"}, "dtype", "float32"),
        ({"torch_dtype": ABSENT}, "dtype", "float32"),
        ({"rope_theta": ABSENT}, "rope", RopeConfig(theta=10000.0)),
        ({"rope_theta": 10000}, "rope", RopeConfig(theta=10000.0)),
        ({"bos_token_id": ABSENT}, "bos_token_id", None),
        ({"sliding_window": None, "quantization_config": None, "pretraining_tp": 1}, "vocab_size", 509),
    ],
)
def test_defaults_and_variants(tmp_path: Path, changes: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(read(tmp_path, **changes), field) == value


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        (None, 7, (7,)),
        (None, [7, 9], (7, 9)),
        (None, None, ()),
        ({"eos_token_id": [3, 4, 5]}, 7, (3, 4, 5)),
        ({"eos_token_id": 0}, 7, (0,)),
        ({"eos_token_id": None}, 7, (7,)),
        ({}, [7], (7,)),
    ],
)
def test_generation_config_has_the_first_say_on_eos(
    tmp_path: Path, generation: Any, config: Any, expected: tuple[int, ...]
) -> None:
    assert read(tmp_path, generation, eos_token_id=config).eos_token_ids == expected


REFUSED = [
    ({"model_type": "qwen2"}, 'model_type is "qwen2"; supported: llama'),
    ({"model_type": ABSENT}, "has no model_type"),
    ({"architectures": ["MistralForCausalLM"]}, 'architectures is ["MistralForCausalLM"]; supported:'),
    ({"attention_bias": True}, "attention_bias is true; supported: false"),
    ({"mlp_bias": True}, "mlp_bias is true; supported: false"),
    ({"hidden_act": "gelu"}, 'hidden_act is "gelu"; supported: "silu"'),
    ({"pretraining_tp": 2}, "pretraining_tp is 2; supported: 1"),
    ({"sliding_window": 4096}, "sliding_window is 4096; supported: null"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; supported: 1.0"),
    ({"quantization_config": {"bits": 4}}, 'quantization_config is {"bits": 4}; quantized checkpoints are not read'),
    ({"num_key_value_heads": 4}, "num_key_value_heads is 4; it should divide num_attention_heads, 6"),
    ({"head_dim": 15}, "head_dim is 15; supported: multiples of 8 from 16 to 256"),
    ({"head_dim": 100}, "head_dim is 100; supported: multiples of 8"),
    ({"head_dim": 8}, "head_dim is 8; supported: multiples of 8 from 16"),
    ({"head_dim": 264}, "head_dim is 264; supported: multiples of 8 from 16 to 256"),
    ({"hidden_size": 100}, "hidden_size is 100; without a head_dim it should be a multiple of num_attention_heads, 6"),
    ({"hidden_size": "96"}, 'hidden_size is "96"; it should be a whole number of at least 1'),
    ({"hidden_size": 96.0}, "hidden_size is 96.0; it should be a whole number"),
    ({"vocab_size": 0}, "vocab_size is 0; it should be a whole number of at least 1"),
    ({"num_hidden_layers": True}, "num_hidden_layers is true; it should be a whole number"),
    ({"rms_norm_eps": 0}, "rms_norm_eps is 0; it should be a finite number above 0"),
    ({"rms_norm_eps": "1e-6"}, 'rms_norm_eps is "1e-6"; it should be a finite number'),
    ({"rope_theta": math.inf}, "rope_theta is Infinity; it should be a finite number"),
    ({"tie_word_embeddings": "yes"}, 'tie_word_embeddings is "yes"; it should be true or false'),
    ({"torch_dtype": "float8"}, 'torch_dtype is "float8"; supported: bfloat16, float16, float32'),
    ({"dtype": "int8"}, 'dtype is "int8"; supported: bfloat16'),
    ({"bos_token_id": -1}, "bos_token_id is -1; it should be a whole number of at least 0"),
    ({"eos_token_id": "x"}, 'eos_token_id is "x"; it should be a token id or a list'),
    ({"eos_token_id": [1, None]}, "eos_token_id is [1, null]; it should be a token id or a list"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 'rope_scaling.rope_type is "yarn"; supported: default'),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 'rope_scaling.type is "dynamic"; supported: default'),
    ({"rope_parameters": {"rope_type": "longrope"}}, 'rope_parameters.rope_type is "longrope"; supported'),
    ({"rope_scaling": {"factor": 4.0}}, "has no rope_scaling.rope_type"),
    ({"rope_scaling": {"type": "linear"}}, "has no rope_scaling.factor"),
    ({"rope_scaling": {"type": "linear", "factor": "2"}}, 'rope_scaling.factor is "2"; it should be a finite number'),
    ({"rope_scaling": "linear"}, 'rope_scaling is "linear"; it should be an object or null'),
    (
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}},
        "rope_scaling.low_freq_factor is 4.0; it should be less than high_freq_factor, 4",
    ),
    (
        {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}},
        "it contradicts rope_parameters",
    ),
    *(({key: ABSENT}, f"has no {key}") for key in ("vocab_size", "hidden_size", "rms_norm_eps", "num_hidden_layers")),
    *(
        ({key: None}, f"has no {key}")
        for key in ("intermediate_size", "num_attention_heads", "max_position_embeddings")
    ),
    *(
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, key: None}}, f"has no rope_scaling.{key}")
        for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    ),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path, **changes)
    assert str(error.value).startswith(str(tmp_path / "config.json")) and words in str(error.value)


def test_files_that_are_no_config(tmp_path: Path) -> None:
    def error(path: Path) -> str:
        with pytest.raises(UserError) as caught:
            ModelConfig.from_folder(path)
        return str(caught.value)

    file = tmp_path / "config.json"
    assert error(tmp_path / "nowhere").endswith("nowhere is not a folder; give a model folder that holds config.json")
    assert f"{tmp_path} has no config.json" in error(tmp_path)
    file.write_text('{\n "a": 1,\n "b" 2}')
    assert f"{file} is not JSON at line 3, column 6" in error(tmp_path)
    assert "is not a folder" in error(file)
    file.write_text("[1]")
    assert "holds a list; it should hold a JSON object" in error(tmp_path)
    file.write_bytes(b"\xff\xfe{")
    assert f"{file} cannot be read as JSON" in error(tmp_path)
    write(tmp_path, generation={"eos_token_id": -2})
    assert f"{tmp_path / 'generation_config.json'}: eos_token_id is -2" in error(tmp_path)


# ---- RoPE


@pytest.mark.parametrize(
    "section",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.5},
        {"rope_type": "llama3", **LLAMA3},
    ],
)
def test_both_schemas_say_the_same(tmp_path: Path, section: dict[str, Any]) -> None:
    old = read(tmp_path, rope_scaling=section).rope
    oldest = read(tmp_path, rope_scaling={**section, "type": section["rope_type"]}).rope
    new = read(tmp_path, rope_theta=ABSENT, rope_parameters={"rope_theta": 500000.0, **section}).rope
    both = read(tmp_path, rope_scaling=section, rope_parameters={"rope_theta": 500000.0, **section}).rope
    assert old == oldest == new == both and old.rope_type == section["rope_type"] and old.theta == 500000.0
    np.testing.assert_array_equal(old.inv_freq(64), new.inv_freq(64))


def exact_inv_freq(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Float64, pair by pair, by what the scaling means: turns made over the original context."""
    found = []
    for pair in range(head_dim // 2):
        freq = math.exp(-math.log(rope.theta) * 2 * pair / head_dim)
        share = 1.0  # of the unscaled frequency
        if rope.rope_type == "linear":
            share = 0.0
        if rope.rope_type == "llama3":
            turns = rope.original_max_position_embeddings * freq / (2 * math.pi)
            share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        share = min(max(share, 0.0), 1.0)
        found.append(freq * (share + (1 - share) / rope.factor))
    return np.array(found)


ROPES = [
    RopeConfig(),
    RopeConfig(theta=500000.0),
    RopeConfig(theta=100000.0, rope_type="linear", factor=4.0),
    RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 8192),
    RopeConfig(500000.0, "llama3", 32.0, 1.0, 4.0, 8192),
    RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 64),
    RopeConfig(10000.0, "llama3", 3.0, 2.0, 7.0, 1000),
]


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128])
@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: f"{rope.rope_type}-{rope.theta:g}-{rope.factor:g}")
def test_inv_freq(rope: RopeConfig, head_dim: int) -> None:
    freq = rope.inv_freq(head_dim)
    assert freq.shape == (head_dim // 2,) and freq.dtype == np.float32
    # float32's power is off by 2 or 3 units in the last place, as the CPU has it. Where nearly nothing of a frequency
    # is unscaled, the blend makes factor / (high - low) of that, 11 times here.
    np.testing.assert_allclose(freq, exact_inv_freq(rope, head_dim), rtol=4e-6)


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: f"{rope.rope_type}-{rope.theta:g}-{rope.factor:g}")
def test_unit_vectors_turn_as_they_should(tmp_path: Path, rope: RopeConfig) -> None:
    head_dim, half = 64, 32
    config = dataclasses.replace(read(tmp_path), rope=rope, head_dim=head_dim)
    table = rope_table(config.rope, config.head_dim, 100001)
    assert table.shape == (100001, head_dim) and table.dtype == np.float32
    for position, tolerance in [(0, 0), (1, 1e-6), (8191, 1e-3), (100000, 1e-2)]:
        cos, sin = table[position, :half], table[position, half:]
        turned = np.exp(1j * position * exact_inv_freq(rope, head_dim))  # pair i of the unit vector along i
        np.testing.assert_allclose(cos + 1j * sin, turned, atol=tolerance, rtol=0)
        np.testing.assert_allclose(-sin + 1j * cos, 1j * turned, atol=tolerance, rtol=0)  # and along i + D/2


def test_angles_are_float32_products(tmp_path: Path) -> None:
    """As Hugging Face: position times frequency is rounded to float32 before the cosine is taken."""
    config = read(tmp_path)
    position, freq = 1999, config.rope.inv_freq(config.head_dim)
    angles = (np.float32(position) * freq).astype(np.float64)
    np.testing.assert_allclose(
        rope_table(config.rope, config.head_dim, 2000)[position], [*np.cos(angles), *np.sin(angles)], atol=2e-7
    )


def test_smollm2_queries_and_keys(tmp_path: Path) -> None:
    """Hugging Face's own queries and keys of "The capital of France is", before and after (theta 100,000)."""
    golden = np.load(DATA / "smollm2_activations.npz")
    table = rope_table(RopeConfig(theta=100000.0), 64, 5)
    cos, sin = table[:, :32], table[:, 32:]
    for name in ("q", "k"):
        before, after = golden[f"layer0_{name}"], golden[f"layer0_{name}_rope"]
        first, second = np.split(before.reshape(5, -1, 64).transpose(1, 0, 2), 2, axis=2)
        turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)
        np.testing.assert_allclose(turned, after, rtol=0, atol=1e-5 * np.abs(after).max())
