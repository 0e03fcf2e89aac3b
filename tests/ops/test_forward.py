"""The whole forward by every set of operations, against logits and tokens of an independent implementation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import DATA
from tests.ops.cases import DTYPES, SETS
from tests.ops.running import BLOCK_SIZE, Running, log_softmax, prompts
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.weights import load_weights

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.15}
NEW_TOKENS = 32


def start(folder: Path, name: str, device, dtype: np.dtype, lengths: list[int]) -> Running:
    config = ModelConfig.from_folder(folder)
    ops = SETS[name](device, config, dtype)
    return Running(device, config, load_weights(folder, config, device, dtype), ops, lengths)


@pytest.mark.parametrize("name", SETS)
def test_tiny_checkpoints(name, tiny_folder, device):
    """Six prompts of different lengths in one step, then 32 tokens of all of them, a row each."""
    golden = prompts(tiny_folder)
    running = start(tiny_folder, name, device, DTYPES["float32"], [len(p["ids"]) + NEW_TOKENS for p in golden])
    logits = running.step([p["ids"] for p in golden], every_row=True)
    ends = np.cumsum([len(p["ids"]) for p in golden])
    for prompt, end in zip(golden, ends, strict=True):
        np.testing.assert_allclose(logits[end - 1], prompt["logits"], rtol=0, atol=1e-3)
        own = log_softmax(logits[end - len(prompt["ids"]) : end - 1])
        given = own[np.arange(len(own)), prompt["ids"][1:]]
        np.testing.assert_allclose(given, prompt["prompt_logprobs"], rtol=0, atol=1e-3)
    tokens, _ = running.greedy(logits[ends - 1], NEW_TOKENS)
    np.testing.assert_array_equal(tokens, [p["tokens"] for p in golden])


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", SETS)
def test_tiny_checkpoints_in_16_bits(name, kind, tiny_folder, device):
    """Logits within the rounding seen elsewhere; tokens equal up to the first that was nearly a tie."""
    golden = prompts(tiny_folder)
    running = start(tiny_folder, name, device, DTYPES[kind], [len(p["ids"]) + NEW_TOKENS for p in golden])
    logits = running.step([p["ids"] for p in golden])
    np.testing.assert_allclose(logits, [p["logits"] for p in golden], rtol=0, atol=TOLERANCE[kind])
    tokens, _ = running.greedy(logits, NEW_TOKENS)
    for prompt, row in zip(golden, tokens, strict=True):
        different = np.flatnonzero(row != prompt["tokens"])
        assert not len(different) or prompt["margin"][different[0]] < TOLERANCE[kind]


@pytest.mark.parametrize("chunk", [1, 7, BLOCK_SIZE, BLOCK_SIZE + 1])
@pytest.mark.parametrize("name", SETS)
def test_a_prompt_in_chunks(name, chunk, device):
    folder = DATA / "tiny" / "tiny-odd"
    prompt = max(prompts(folder), key=lambda p: len(p["ids"]))
    ids = prompt["ids"][: 3 * chunk + 1] if chunk == 1 else prompt["ids"]
    running = start(folder, name, device, DTYPES["float32"], [len(ids)])
    whole = start(folder, name, device, DTYPES["float32"], [len(ids)]).step([ids], every_row=True)
    parts = [running.step([ids[i : i + chunk]], every_row=True) for i in range(0, len(ids), chunk)]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", SETS)
def test_requests_come_and_stay(name, device):
    """A new prompt beside requests that decode: prefill and decode in one step change nothing for either."""
    folder = DATA / "tiny" / "tiny"
    golden = prompts(folder)[1:4]
    running = start(folder, name, device, DTYPES["float32"], [len(p["ids"]) + 2 for p in golden])
    first, second, third = (p["ids"] for p in golden)
    a = running.step([first, second, []])
    b = running.step([[golden[0]["tokens"][0]], [golden[1]["tokens"][0]], third])
    assert [int(row.argmax()) for row in a[:2]] == [golden[0]["tokens"][0], golden[1]["tokens"][0]]
    assert [int(row.argmax()) for row in b] == [golden[0]["tokens"][1], golden[1]["tokens"][1], golden[2]["tokens"][0]]
    np.testing.assert_allclose(b[2], golden[2]["logits"], rtol=0, atol=1e-3)


# ---- the real model


@pytest.fixture(scope="module")
def smollm2(smollm2_folder, device):
    config = ModelConfig.from_folder(smollm2_folder)
    return config, load_weights(smollm2_folder, config, device, DTYPES["float32"])


def within(got: np.ndarray, expected: np.ndarray, largest: float = 0.0) -> None:
    """Within 1e-5 of the largest element, here or where the rounding happened: the residual stream reaches 22,600."""
    assert np.abs(got - expected).max() <= 1e-5 * max(float(np.abs(expected).max()), largest)


@pytest.mark.parametrize("name", SETS)
def test_activations_stage_by_stage(name, smollm2, device):
    config, weights = smollm2
    golden = np.load(DATA / "smollm2_activations.npz")
    ids = golden["input_ids"].tolist()
    running = Running(device, config, weights, SETS[name](device, config, DTYPES["float32"]), [len(ids)])
    ops, host = running.ops, device.to_host
    tokens, meta, b = running.plan([ids], every_row=True)
    x, layer, kv = ops.embed(tokens, weights.embed, out=b.hidden), weights.layers[0], running.cache.layers[0]
    within(host(x), golden["embedding"])
    within(host(ops.rms_norm(x, layer.input_norm, config.rms_norm_eps)), golden["layer0_input_norm"])
    ops.linear(ops.rms_norm(x, layer.input_norm, config.rms_norm_eps), layer.qkv, out=b.qkv)
    for part in ("q", "k", "v"):
        within(host(getattr(b, part)), golden[f"layer0_{part}"])
    ops.attn_in(x, layer, kv, meta, b)
    within(host(b.q).reshape(len(ids), -1, config.head_dim).swapaxes(0, 1), golden["layer0_q_rope"])
    keys = host(kv)[running.tables[0], :, 0].swapaxes(0, 1)  # [head, block, offset, dimension]
    within(keys.reshape(len(keys), -1, config.head_dim)[:, : len(ids)], golden["layer0_k_rope"])
    attended = ops.attention(b.q, kv, meta, out=b.attended)
    within(host(ops.linear(attended, layer.o)), golden["layer0_attention_out"])
    ops.attn_out(attended, x, layer, b)
    within(host(ops.rms_norm(x, layer.post_attention_norm, config.rms_norm_eps)), golden["layer0_post_attention_norm"])
    ops.mlp_in(x, layer, b)
    within(host(ops.linear(b.activated, layer.down)), golden["layer0_mlp_out"])
    ops.mlp_out(x, layer, b)
    within(host(x), golden["layer0_out"])


@pytest.mark.parametrize("name", SETS)
def test_activations_layer_by_layer(name, smollm2, device):
    config, weights = smollm2
    golden = np.load(DATA / "smollm2_activations.npz")
    ids = golden["input_ids"].tolist()
    running = Running(device, config, weights, SETS[name](device, config, DTYPES["float32"]), [len(ids)])
    tokens, meta, b = running.plan([ids], every_row=True)
    x, largest = running.ops.embed(tokens, weights.embed, out=b.hidden), 0.0
    for index in range(config.num_hidden_layers):
        only = type(weights)(weights.embed, weights.layers[index : index + 1], weights.norm, weights.lm_head)
        cache = type(running.cache)(running.cache.layers[index : index + 1], BLOCK_SIZE)
        running.ops.layers(x, only, cache, meta, b)
        within(device.to_host(x), golden[f"layer{index}_out"], largest)
        largest = max(largest, float(np.abs(golden[f"layer{index}_out"]).max()))  # layer 9 subtracts most of layer 8's
    logits = device.to_host(running.ops.head(x, weights, meta, b))
    within(device.to_host(b.last_normed), golden["final_norm"])
    within(logits, golden["logits"])


@pytest.mark.parametrize("name", ["reference", "tuned", pytest.param("course", marks=pytest.mark.deep)])
def test_smollm2_prompts(name, smollm2, device):
    """Seven prompts in one step, then 32 tokens of all of them."""
    config, weights = smollm2
    golden = json.loads((DATA / "smollm2_135m_instruct.json").read_text(encoding="utf-8"))["prompts"]
    lengths = [len(p["ids"]) + NEW_TOKENS for p in golden]
    running = Running(device, config, weights, SETS[name](device, config, DTYPES["float32"]), lengths)
    logits = running.step([p["ids"] for p in golden])
    for row, prompt in zip(logits, golden, strict=True):
        expected = prompt["fp32"]
        np.testing.assert_allclose(row[expected["top_ids"]], expected["top_logits"], rtol=0, atol=1e-3)
        assert np.delete(row, expected["top_ids"]).max() <= min(expected["top_logits"]) + 1e-3
    tokens, _ = running.greedy(logits, NEW_TOKENS)
    np.testing.assert_array_equal(tokens, [p["fp32"]["tokens"] for p in golden])


@pytest.mark.deep
@pytest.mark.parametrize(("kind", "logit_tolerance", "near_tie"), [("bfloat16", 1.0, 0.5), ("float16", 0.3, 0.15)])
def test_smollm2_in_16_bits(kind, logit_tolerance, near_tie, smollm2_folder, device):
    golden = json.loads((DATA / "smollm2_135m_instruct.json").read_text(encoding="utf-8"))["prompts"]
    running = start(smollm2_folder, "tuned", device, DTYPES[kind], [len(p["ids"]) + NEW_TOKENS for p in golden])
    logits = running.step([p["ids"] for p in golden])
    tokens, _ = running.greedy(logits, NEW_TOKENS)
    for row, chosen, prompt in zip(logits, tokens, golden, strict=True):
        expected = prompt["fp32"]
        np.testing.assert_allclose(row[expected["top_ids"]], expected["top_logits"], rtol=0, atol=logit_tolerance)
        different = np.flatnonzero(chosen != expected["tokens"])
        assert not len(different) or expected["margin"][different[0]] < near_tie
