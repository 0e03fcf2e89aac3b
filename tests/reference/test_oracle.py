"""The oracle against logits and tokens of another implementation, and its own reading of a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.conftest import DATA
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.reference.llama import Oracle, _inv_freq

TINY = DATA / "tiny" / "tiny"


def prompts(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "golden.json").read_text(encoding="utf-8"))["prompts"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits(dtype, tiny_folder):
    oracle = Oracle(tiny_folder, dtype)
    for prompt in prompts(tiny_folder):
        logits = oracle.logits(prompt["ids"])
        assert logits.shape == (len(prompt["ids"]), oracle.config["vocab_size"]) and logits.dtype == dtype
        np.testing.assert_allclose(logits[-1], prompt["logits"], rtol=0, atol=1e-3)
        given = log_softmax(logits[:-1])[np.arange(len(logits) - 1), prompt["ids"][1:]]
        np.testing.assert_allclose(given, prompt["prompt_logprobs"], rtol=0, atol=1e-3)


def test_greedy(tiny_folder):
    oracle = Oracle(tiny_folder)
    for prompt in prompts(tiny_folder):
        assert oracle.greedy(prompt["ids"], 32) == prompt["tokens"]


def test_the_real_model(smollm2_folder):
    """Each golden token is the best one after all those before it: 32 steps of greedy decoding in one forward."""
    oracle = Oracle(smollm2_folder)
    golden = json.loads((DATA / "smollm2_135m_instruct.json").read_text(encoding="utf-8"))["prompts"]
    for prompt in (p for p in golden if p["name"] in ("short", "numbers")):
        expected = prompt["fp32"]
        logits = oracle.logits(prompt["ids"] + expected["tokens"][:-1])[len(prompt["ids"]) - 1 :]
        np.testing.assert_allclose(logits[0][expected["top_ids"]], expected["top_logits"], rtol=0, atol=1e-3)
        np.testing.assert_array_equal(logits.argmax(axis=-1), expected["tokens"])


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_other_types_on_disk(kind, tmp_path):
    """bfloat16 fits in float32 as it is; in float16 only what is small is rounded."""
    for name in ("config.json", "golden.json"):
        shutil.copy(TINY / name, tmp_path)
    tensors = load_file(TINY / "model.safetensors")
    tensors = {name: tensor.astype(np.float32).astype(kind) for name, tensor in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    ids = prompts(TINY)[1]["ids"]
    ours, theirs = Oracle(tmp_path).logits(ids), Oracle(TINY).logits(ids)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=0 if kind is np.float32 else 1e-2)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 10000.0},
    "linear": {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama3": {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "transformers 5": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}},
}


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_frequencies_as_the_engine_reads_them(rope, tmp_path):
    """Two readings of one config.json, written apart from each other; and the plain formula where nothing is scaled."""
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    del config["rope_theta"], config["rope_scaling"]
    (tmp_path / "config.json").write_text(json.dumps(config | rope), encoding="utf-8")
    ours = _inv_freq(config | rope, 64)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, ModelConfig.from_folder(tmp_path).rope.inv_freq(64), rtol=1e-6)
    factor = rope.get("rope_scaling", {}).get("factor", 1.0)
    if "llama3" not in str(rope):
        np.testing.assert_allclose(ours, 10000.0 ** (-np.arange(0, 64, 2) / 64) / factor, rtol=1e-6)


def test_an_unknown_rope_type_is_named():
    with pytest.raises(ValueError, match="'yarn'"):
        _inv_freq({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, 64)
