"""LLM: answers equal to those of an independent implementation, and a sentence for every mistake."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import weakref
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tiny_vllm.device as device_module
from tiny_vllm import LLM, SamplingParams
from tiny_vllm.errors import DeviceError, UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.dtype import resolve_dtype
from tiny_vllm.ops import make_ops
from tiny_vllm.ops.tuned import TunedOps

DATA = Path(__file__).parent / "data" / "tiny"
GREEDY = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)


def goldens(name: str) -> list[dict[str, Any]]:
    return json.loads((DATA / name / "golden.json").read_text())["prompts"]


def ids_of(prompt: list[int]) -> dict[str, list[int]]:
    return {"prompt_token_ids": prompt}


@pytest.fixture(scope="module")
def where(request) -> str:
    return request.config.getoption("--device")


@pytest.fixture(scope="module")
def llm(where) -> Iterator[LLM]:
    with LLM(DATA / "tiny", dtype="float32", device=where) as made:
        yield made


def test_greedy_tokens_are_the_goldens(tiny_folder, where):
    prompts = goldens(tiny_folder.name)
    with LLM(tiny_folder, dtype="float32", device=where) as llm:
        outputs = llm.generate([ids_of(prompt["ids"]) for prompt in prompts], GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == [prompt["tokens"] for prompt in prompts]
    assert [output.prompt_token_ids for output in outputs] == [prompt["ids"] for prompt in prompts]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.5), ("float16", 0.15)])
@pytest.mark.parametrize("name", ["tiny-hd128", "tiny-untied"])
def test_16_bit_tokens_differ_only_where_the_margin_is_small(name, dtype, tolerance, where):
    prompts = goldens(name)
    with LLM(DATA / name, dtype=dtype, device=where) as llm:
        outputs = llm.generate([ids_of(prompt["ids"]) for prompt in prompts], GREEDY)
    for output, prompt in zip(outputs, prompts, strict=True):
        pairs = zip(output.outputs[0].token_ids, prompt["tokens"], prompt["margin"], strict=True)
        first_margin = next((margin for found, wanted, margin in pairs if found != wanted), 0.0)
        assert first_margin < tolerance


@pytest.mark.parametrize("budget", [1, 7, 16, 17])
def test_chunked_prefill_gives_the_same_tokens(budget, where):
    prompts = goldens("tiny-rope3")
    with LLM(DATA / "tiny-rope3", dtype="float32", device=where, max_num_batched_tokens=budget) as llm:
        outputs = llm.generate([ids_of(prompt["ids"]) for prompt in prompts], dataclasses.replace(GREEDY, max_tokens=4))
    assert [output.outputs[0].token_ids for output in outputs] == [prompt["tokens"][:4] for prompt in prompts]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logprobs_are_the_log_softmax_of_the_raw_logits(llm, temperature):
    for prompt in goldens("tiny"):
        params = SamplingParams(temperature, max_tokens=1, logprobs=5, seed=3, ignore_eos=True)
        [answer] = llm.generate(ids_of(prompt["ids"]), params)[0].outputs
        logits = np.array(prompt["logits"])
        expected = logits - np.logaddexp.reduce(logits)
        [position] = answer.logprobs
        assert set(np.argsort(-logits)[:5].tolist()) | set(answer.token_ids) == set(position)
        for token_id, item in position.items():
            assert item.logprob == pytest.approx(expected[token_id], abs=2e-3)
            assert item.decoded_token == llm.get_tokenizer().token(token_id)


def test_a_seed_gives_the_same_answer_whatever_runs_beside_it(llm):
    params = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True, seed=7)
    alone = llm.generate("a b c", params)[0].outputs[0].token_ids
    among = llm.generate(["x", "a b c", "y z"], params)
    assert among[1].outputs[0].token_ids == alone
    other = [dataclasses.replace(params, seed=seed) for seed in (8, None, None)]
    different = [output.outputs[0].token_ids for output in llm.generate(["a b c"] * 3, other)]
    assert len({tuple(ids) for ids in [alone, *different]}) == 4


def test_two_streams_may_be_read_in_turn(llm):
    """One cache serves both: each is computed anew when its turn comes, and neither reads the other's keys."""
    one, two = goldens("tiny")[2], goldens("tiny")[4]
    streams = [llm.stream(ids_of(prompt["ids"]), dataclasses.replace(GREEDY, max_tokens=4)) for prompt in (one, two)]
    for turn in zip(*streams, strict=True):
        last = [output.outputs[0].token_ids for output in turn]
    assert last == [one["tokens"][:4], two["tokens"][:4]]


def test_eos_ends_the_answer_unless_ignored(where, tmp_path):
    prompt = goldens("tiny")[2]
    stop_at = 5
    eos = prompt["tokens"][stop_at]
    assert eos not in prompt["tokens"][:stop_at]
    folder = copy_model(DATA / "tiny", tmp_path, "generation_config.json", eos_token_id=[1, eos])
    with LLM(folder, dtype="float32", device=where) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=32)
        [answer] = llm.generate(ids_of(prompt["ids"]), params)[0].outputs
        assert (answer.token_ids, answer.finish_reason) == (prompt["tokens"][: stop_at + 1], "stop")
        assert answer.text == llm.get_tokenizer().decode(answer.token_ids[:-1])
        [answer] = llm.generate(ids_of(prompt["ids"]), GREEDY)[0].outputs
        assert (answer.token_ids, answer.finish_reason) == (prompt["tokens"], "length")


def test_the_longest_prompt_gives_one_token_and_one_more_is_refused(where):
    prompt = goldens("tiny")[2]
    length = len(prompt["ids"]) + 1
    with LLM(DATA / "tiny", dtype="float32", device=where, max_model_len=length) as llm:
        [answer] = llm.generate(ids_of(prompt["ids"]), GREEDY)[0].outputs
        assert (answer.token_ids, answer.finish_reason) == (prompt["tokens"][:1], "length")
        with pytest.raises(UserError, match=f"the prompt has {length} tokens and max_model_len is {length}"):
            llm.generate(ids_of([*prompt["ids"], 3]), GREEDY)
        assert llm.generate(ids_of(prompt["ids"]), GREEDY)[0].outputs[0].token_ids == prompt["tokens"][:1]


def test_a_request_runs_to_the_very_end_of_the_length(llm, where):
    prompt = ids_of(goldens("tiny")[1]["ids"])
    expected = llm.generate(prompt, dataclasses.replace(GREEDY, max_tokens=26))[0].outputs[0].token_ids
    with LLM(DATA / "tiny", dtype="float32", device=where, max_model_len=33) as short:  # not a multiple of a block
        [answer] = short.generate(prompt, dataclasses.replace(GREEDY, max_tokens=500))[0].outputs
    assert (answer.token_ids, answer.finish_reason) == (expected, "length")


def test_a_stream_joins_to_the_answer(llm):
    params = SamplingParams(temperature=1.2, max_tokens=40, ignore_eos=True, seed=1)
    outputs = list(llm.stream("é😀 words", params))
    texts = [output.outputs[0].text for output in outputs]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    [whole] = llm.generate("é😀 words", params)[0].outputs
    assert outputs[-1].outputs[0] == whole
    assert whole.text == llm.get_tokenizer().decode(whole.token_ids)
    assert [output.finished for output in outputs] == [False] * 39 + [True]


def test_params_for_each_prompt(llm):
    params = [SamplingParams(0.0, max_tokens=count, ignore_eos=True) for count in (3, 1)]
    outputs = llm.generate(["a", "b"], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 1]
    assert [output.prompt for output in outputs] == ["a", "b"]
    assert len({output.request_id for output in outputs}) == 2
    assert llm.generate([]) == []


def test_chat_is_the_template_and_no_second_bos(llm):
    conversation = [{"role": "user", "content": "Hi"}]
    params = SamplingParams(0.0, max_tokens=2)
    [output] = llm.chat(conversation, params)
    assert output.prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt_token_ids == llm.get_tokenizer().encode(output.prompt, add_special_tokens=False)
    several = llm.chat([conversation, conversation], params)
    assert [each.outputs[0].token_ids for each in several] == [output.outputs[0].token_ids] * 2


def test_a_tokenizer_with_bos(where, tmp_path):
    bos = 509
    template = "{{ bos_token }}{{ messages[0]['content'] }}"
    changes: dict[str, Any] = {"add_bos_token": True, "chat_template": template}
    folder = copy_model(DATA / "tiny", tmp_path, "tokenizer_config.json", **changes)
    params = SamplingParams(0.0, max_tokens=2, ignore_eos=True)
    with LLM(folder, dtype="float32", device=where) as llm:
        [empty] = llm.generate("", params)
        assert (empty.prompt_token_ids, len(empty.outputs[0].token_ids)) == ([bos], 2)
        [chat] = llm.chat([{"role": "user", "content": "Hi"}], params)
        assert chat.prompt_token_ids[0] == bos and chat.prompt_token_ids.count(bos) == 1


def test_progress_shows_when_asked(llm, capsys):
    llm.generate("a", SamplingParams(0.0, max_tokens=1), use_tqdm=True)
    assert "1/1" in capsys.readouterr().err
    llm.generate("a", SamplingParams(0.0, max_tokens=1))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: llm.generate(""), "the prompt '' has no tokens"),
        (lambda llm: llm.generate({"prompt_token_ids": []}), "prompt_token_ids is empty"),
        (lambda llm: llm.generate({"prompt_token_ids": [512]}), "token id 512 is not in the vocabulary"),
        (lambda llm: llm.generate([1, 2]), "a prompt is 1; give a text"),
        (lambda llm: llm.generate(["a", "b"], [GREEDY]), "1 sampling_params for 2 prompts"),
        (lambda llm: llm.generate("a " * 3000), "max_model_len is 2048"),
        (lambda llm: llm.stream(""), "the prompt '' has no tokens"),
        (lambda llm: llm.chat([]), "messages is"),
        (lambda llm: llm.chat("Hi"), "messages is"),
        (lambda llm: llm.chat([{"role": "user"}]), "content"),
        (lambda llm: SamplingParams(temperature=-0.5), "temperature is -0.5"),
        (lambda llm: SamplingParams(max_tokens=0), "max_tokens is 0"),
    ],
)
def test_mistakes_and_the_engine_lives(llm, call, message):
    with pytest.raises(UserError, match=message) as caught:
        call(llm)
    assert "\n" not in str(caught.value)
    assert len(llm.generate("a", SamplingParams(0.0, max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'; give one of auto, bfloat16, float16, float32"),
        ({"dtype": np.float32}, "dtype is <class 'numpy.float32'>; give one of"),
        ({"device": "tpu"}, "tpu"),
        ({"ops": "fast"}, "ops is 'fast'; give one of tuned, reference"),
        ({"ops": 3}, "ops is 3"),
        ({"max_model_len": 2049}, "max_model_len is 2049; give a whole number from 2 to 2048"),
        ({"max_model_len": 1}, "max_model_len is 1; give"),
        ({"max_model_len": 64.0}, "max_model_len is 64.0; give"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0; give a whole number of at least 1"),
    ],
)
def test_mistakes_in_the_settings(settings, message, where):
    with pytest.raises(UserError, match=message):
        LLM(DATA / "tiny", **{"device": where, **settings})


def test_a_cache_that_does_not_fit(where, monkeypatch, device):
    monkeypatch.setattr(device, "memory_info", lambda: (2_000_000, 2_000_000))
    limits: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 64, "gpu_memory_utilization": 0.25}
    before = count_weights()
    with pytest.raises(UserError, match=r"max_model_len is 2048: .*; the largest that fits is (\d+)$") as caught:
        LLM(DATA / "tiny", device=where, dtype="float32", **limits)
    largest = int(str(caught.value).rsplit(" ", 1)[1])
    assert count_weights() == before  # though the error, and with it the traceback, is still there
    with LLM(DATA / "tiny", device=where, dtype="float32", max_model_len=largest, **limits) as llm:
        assert llm.max_model_len == largest


def count_weights() -> int:
    return sum(type(item).__name__ == "LlamaWeights" for item in gc.get_objects())


def gpu(capability: int) -> Any:
    return SimpleNamespace(name="cuda", compute_capability=capability, description="Tesla T4", default_dtype="bfloat16")


def test_dtypes():
    config = ModelConfig.from_folder(DATA / "tiny")
    emulator: Any = SimpleNamespace(name="emulator", compute_capability=90, default_dtype="float32")
    assert config.dtype == "bfloat16"
    assert resolve_dtype("auto", config, emulator) == np.float32
    assert resolve_dtype("bfloat16", config, emulator).name == "bfloat16"
    assert resolve_dtype("auto", config, gpu(90)).name == "bfloat16"
    assert resolve_dtype("auto", config, gpu(80)).name == "bfloat16"
    assert resolve_dtype("auto", config, gpu(75)) == np.float16
    assert resolve_dtype("float32", config, gpu(75)) == np.float32
    assert resolve_dtype("auto", dataclasses.replace(config, dtype="float32"), gpu(75)) == np.float32
    with pytest.raises(UserError, match=r"Tesla T4 has compute capability 7.5, and bfloat16 needs 8.0; use float16 or"):
        resolve_dtype("bfloat16", config, gpu(75))


class Counting(TunedOps):
    """A set that notes that it ran."""

    def silu_mul(self, gate_up: Any, out: Any = None) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return super().silu_mul(gate_up, out)


def test_ops_by_class_and_by_object(where, device):
    prompt = goldens("tiny")[2]
    config = ModelConfig.from_folder(DATA / "tiny")
    params = dataclasses.replace(GREEDY, max_tokens=3)
    made = Counting(device, config, np.dtype(np.float32))
    for ops in (Counting, made):
        with LLM(
            DATA / "tiny", dtype="float32", device=where if ops is Counting else "auto", ops=ops, enforce_eager=True
        ) as llm:
            assert llm.generate(ids_of(prompt["ids"]), params)[0].outputs[0].token_ids == prompt["tokens"][:3]
    assert made.calls == 3 * config.num_hidden_layers
    with pytest.raises(
        UserError, match="ops was made for another model, or for float32 where this one runs in float16"
    ):
        LLM(DATA / "tiny", dtype="float16", ops=made)
    with pytest.raises(UserError, match="ops was made for another model"):
        LLM(DATA / "tiny-mqa", dtype="float32", ops=made)
    other = "cuda" if device.name == "emulator" else "emulator"
    with pytest.raises(UserError, match="leave one of them out"):
        LLM(DATA / "tiny", dtype="float32", device=other, ops=made)


def test_a_replaced_primitive_reaches_the_answer(where, device):
    config = ModelConfig.from_folder(DATA / "tiny")
    plain = make_ops("tuned", device, config, np.dtype(np.float32))

    def no_rope(q: Any, k: Any, positions: Any, table: Any) -> None:
        """Leaves queries and keys as they are."""

    prompt = goldens("tiny")[2]
    with LLM(DATA / "tiny", dtype="float32", ops=plain.replace(rope=no_rope)) as llm:
        assert llm.generate(ids_of(prompt["ids"]), GREEDY)[0].outputs[0].token_ids != prompt["tokens"]


def test_reference_ops_give_the_goldens():
    prompt = goldens("tiny")[2]
    with LLM(DATA / "tiny", device="emulator", dtype="float32", ops="reference") as llm:
        assert llm.generate(ids_of(prompt["ids"]), GREEDY)[0].outputs[0].token_ids == prompt["tokens"]


def test_close_gives_the_memory_back_and_ends_use(where, device):
    with LLM(DATA / "tiny", device=where, dtype="float32", max_model_len=64) as first:
        first.generate("a", GREEDY)  # a driver keeps what the first use of a kernel takes
    free = device.memory_info()[0]
    llm = LLM(DATA / "tiny", device=where, dtype="float32", max_model_len=64)
    stream = llm.stream("a b", SamplingParams(0.0, max_tokens=9, ignore_eos=True))
    next(stream)
    runner = weakref.ref(llm._engine.check_open().runner)
    assert runner() is not None
    llm.close()
    assert runner() is None  # though the stream is still there
    if device.name == "cuda" and "PYTEST_XDIST_WORKER" not in os.environ:  # else others take memory meanwhile
        assert device.memory_info()[0] >= free - (16 << 20)  # CUDA loads its own kernels lazily, and keeps them
    llm.close()
    for use in (
        lambda: next(stream),
        lambda: llm.generate("a"),
        lambda: llm.chat([{"role": "user", "content": "a"}]),
        lambda: llm.stream("a"),
        llm.get_tokenizer,
        llm.__enter__,
    ):
        with pytest.raises(UserError, match="this LLM is closed; make a new one"):
            use()


def copy_model(source: Path, target: Path, changed: str, **changes: Any) -> Path:
    """A copy of a checkpoint in which one of its JSON files has other settings."""
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    settings = json.loads((target / changed).read_text())
    (target / changed).write_text(json.dumps(settings | changes))
    return target


@pytest.mark.deep
def test_the_seven_prompts_of_a_real_model(where):
    prompts = json.loads((DATA.parent / "smollm2_135m_instruct.json").read_text())["prompts"]
    with LLM("smollm2-135m", dtype="float32", device=where) as llm:
        outputs = llm.generate([ids_of(prompt["ids"]) for prompt in prompts], GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == [prompt["fp32"]["tokens"] for prompt in prompts]


def test_no_compiler_is_said_before_a_model_is_looked_for(monkeypatch):
    def none() -> None:
        raise DeviceError("no C++ compiler found")

    monkeypatch.setattr("tiny_vllm.device.emulator.find_compiler", none)
    fresh = cache(device_module._make.__wrapped__)  # the device that other tests use has found its compiler
    monkeypatch.setattr(device_module, "_make", fresh)
    with pytest.raises(DeviceError, match=r"no C\+\+ compiler"):
        LLM("org/not-fetched", device="emulator")
