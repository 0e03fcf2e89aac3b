"""What our drivers of transformers and vLLM ask of them, by modules that stand in: no torch is needed here."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tiny_vllm.bench.table.contenders.base import Setup
from tiny_vllm.bench.table.contenders.torch_compile import TorchCompile
from tiny_vllm.bench.table.contenders.transformers_generate import TransformersGenerate
from tiny_vllm.errors import UserError

SETUP = Setup("a folder", 1024, 0.2, dtype="bfloat16")


class Rows:
    """A tensor's shape and no more."""

    def __init__(self, rows: int, columns: int) -> None:
        self.shape = (rows, columns)


class Model:
    """Says what it was asked."""

    def __init__(self, **settings: Any) -> None:
        self.asked: list[tuple[str, Any]] = [("loaded", settings)]
        self.generation_config = SimpleNamespace(eos_token_id=7, pad_token_id=None)

    def to(self, device: str) -> Model:
        self.asked.append(("to", device))
        return self

    def eval(self) -> Model:
        return self

    def generate(self, ids: Rows, **settings: Any) -> Rows:
        self.asked.append(("generate", settings))
        return Rows(ids.shape[0], ids.shape[1] + settings["max_new_tokens"])

    def set_attn_implementation(self, name: str) -> None:
        if name == "paged|sdpa":
            raise ValueError("another version")
        self.asked.append(("attention", name))

    def generate_batch(self, inputs: list[list[int]], generation_config: Any) -> dict[str, Any]:
        self.asked.append(("batch", (inputs, generation_config.max_new_tokens)))
        return {str(i): SimpleNamespace(generated_tokens=[0] * 4) for i in range(len(inputs))}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(
        __name__="torch",
        __version__="9",
        cuda=SimpleNamespace(is_available=lambda: False),
        tensor=lambda rows, device: Rows(len(rows), len(rows[0])),
        ones_like=lambda ids: "ones",
        inference_mode=nullcontext,
    )
    transformers = SimpleNamespace(
        __name__="transformers",
        __version__="8",
        GenerationConfig=SimpleNamespace,
        AutoModelForCausalLM=SimpleNamespace(from_pretrained=lambda path, **settings: Model(path=path, **settings)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "transformers", transformers)


def test_prompts_of_one_length_go_to_generate(modules):
    found = TransformersGenerate(SETUP)
    assert found.model.asked[0] == (
        "loaded",
        {"path": "a folder", "dtype": "bfloat16", "attn_implementation": "sdpa"},
    )
    assert found.model.generation_config.eos_token_id is None  # or an answer would end early
    assert found.generate([[1, 2, 3]] * 5, [4] * 5, 0.0) == 20
    name, settings = found.model.asked[-1]
    assert name == "generate" and settings["max_new_tokens"] == settings["min_new_tokens"] == 4
    assert settings["do_sample"] is False and settings["attention_mask"] == "ones"


def test_prompts_of_many_lengths_go_to_generate_batch(modules):
    found = TransformersGenerate(SETUP)
    assert found.generate([[1, 2, 3], [4]], [4, 4], 0.6) == 8
    assert found.model.asked[-3:] == [
        ("attention", "sdpa_paged"),  # the first name is of another version
        ("batch", ([[1, 2, 3], [4]], 4)),
        ("attention", "sdpa"),
    ]
    assert found.versions() == {"torch": "9", "transformers": "8"}


def test_a_cuda_graph_needs_a_gpu(modules):
    with pytest.raises(UserError, match="needs a GPU"):
        TorchCompile(SETUP)


def test_vllm_gets_what_our_engine_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The same folder, length and kind of answers, its own share of the memory, no prefix cache."""
    from tiny_vllm.bench.table.contenders.vllm_llm import VLLM

    seen: dict[str, Any] = {}

    class LLM:
        def __init__(self, **settings: Any) -> None:
            seen.update(settings)

        def generate(self, prompts: Any, params: Any, use_tqdm: bool) -> list[Any]:
            seen.update(prompts=prompts, params=params)
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0] * each.max_tokens)]) for each in params]

    module = SimpleNamespace(__name__="vllm", LLM=LLM, SamplingParams=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm", module)
    assert VLLM(SETUP).generate([[1, 2], [3]], [4, 5], 0.6) == 9
    expected = {"model": "a folder", "dtype": "bfloat16", "max_model_len": 1024, "gpu_memory_utilization": 0.2}
    assert expected.items() <= seen.items() and seen["enable_prefix_caching"] is False
    assert seen["prompts"] == [{"prompt_token_ids": [1, 2]}, {"prompt_token_ids": [3]}]
    assert [vars(each) for each in seen["params"]] == [
        {"temperature": 0.6, "max_tokens": length, "ignore_eos": True, "detokenize": False} for length in (4, 5)
    ]
