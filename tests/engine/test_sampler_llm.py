"""Sampling and text through LLM and the command line, against an oracle that knows no engine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tiny_vllm import LLM, SamplingParams, cli
from tiny_vllm.errors import UserError
from tiny_vllm.reference import sampling as reference
from tiny_vllm.reference.llama import Oracle

TINY = Path(__file__).parents[1] / "data" / "tiny" / "tiny"
PROMPTS = json.loads((TINY / "golden.json").read_text())["prompts"]
PROMPT = {"prompt_token_ids": PROMPTS[2]["ids"]}
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def where(request) -> str:
    return request.config.getoption("--device")


@pytest.fixture(scope="module")
def llm(where) -> Iterator[LLM]:
    with LLM(TINY, dtype="float32", device=where, max_model_len=128) as made:
        yield made


@cache
def oracle() -> Oracle:
    return Oracle(TINY)


def answer(llm: LLM, params: SamplingParams) -> Any:
    return llm.generate(PROMPT, params)[0].outputs[0]


def changed(**params: Any) -> SamplingParams:
    return dataclasses.replace(GREEDY, **params)


def test_top_k_1_is_temperature_0(llm):
    """Hazard row: temperature 0 wanted; top_k=1 differs from temperature 0."""
    assert answer(llm, GREEDY).token_ids == PROMPTS[2]["tokens"][:20]
    for params in ({"top_k": 1}, {"top_p": 1e-9}, {"top_p": 1e-320}, {"temperature": 1e-9}):
        drawn = changed(**{"temperature": 1.3, "seed": 4, **params})
        assert answer(llm, drawn).token_ids == PROMPTS[2]["tokens"][:20]


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
        {"temperature": 1.2, "seed": 6, "top_k": 30, "top_p": 0.9, "presence_penalty": 1.0},
        {"temperature": 0.9, "seed": 7, "min_p": 0.01, "logit_bias": {40: 3.0, 41: -5.0}},
    ],
)
def test_answers_are_the_oracles(llm, params):
    """Each token is that of NumPy's sampler over NumPy's forward, given the tokens before it."""
    sampling = changed(**params)
    found, prompt = answer(llm, sampling).token_ids, PROMPT["prompt_token_ids"]
    logits = oracle().logits((prompt + found)[:-1])[len(prompt) - 1 :]
    adjusted = [reference.adjust(row, sampling, prompt, found[:i]) for i, row in enumerate(logits)]
    assert found == [reference.draw(row, sampling, index) for index, row in enumerate(adjusted)]


def test_a_stop_string(llm):
    whole = answer(llm, GREEDY)
    stop = whole.text[7:10]
    start = whole.text.index(stop)
    found = answer(llm, changed(stop=["never comes", stop]))
    assert (found.text, found.finish_reason, found.stop_reason) == (whole.text[:start], "stop", stop)
    assert len(found.token_ids) < len(whole.token_ids)
    assert whole.token_ids[: len(found.token_ids)] == found.token_ids
    included = answer(llm, changed(stop=stop, include_stop_str_in_output=True))
    assert included.text == whole.text[: start + len(stop)]
    texts = [output.outputs[0].text for output in llm.stream(PROMPT, changed(stop=stop))]
    assert texts[-1] == found.text and all(found.text.startswith(text) for text in texts)


def test_stop_token_ids_and_min_tokens(llm):
    tokens = PROMPTS[2]["tokens"]
    stop = tokens[5]
    first = tokens.index(stop)
    found = answer(llm, changed(stop_token_ids=[stop]))
    assert (found.token_ids, found.finish_reason, found.stop_reason) == (tokens[: first + 1], "stop", stop)
    assert found.text == llm.get_tokenizer().decode(tokens[:first])
    longer = answer(llm, changed(stop_token_ids=[stop], min_tokens=12))
    assert len(longer.token_ids) > 12 and stop not in longer.token_ids[:12]


def test_prompt_logprobs_and_logprobs_are_raw(llm):
    prompt = PROMPT["prompt_token_ids"]
    params = changed(
        prompt_logprobs=2, logprobs=3, max_tokens=3, repetition_penalty=1.5, temperature=2.0, seed=1, top_k=9
    )
    [output] = llm.generate(PROMPT, params)
    tokens = prompt + output.outputs[0].token_ids
    expected = [reference.log_softmax(row) for row in oracle().logits(tokens[:-1])]
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    found = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
    assert len(found) == len(expected) == len(tokens) - 1
    for index, (mine, row) in enumerate(zip(found, expected, strict=True)):
        count = 2 if index < len(prompt) - 1 else 3
        assert set(mine) == {*reference.order(row)[:count].tolist(), tokens[index + 1]}
        for token, item in mine.items():
            assert item.logprob == pytest.approx(row[token], abs=1e-3)


def test_n_answers_draw_with_seeds_one_after_another(llm):
    params = changed(temperature=1.5, n=3, seed=11, max_tokens=8)
    [output] = llm.generate(PROMPT, params)
    alone = [answer(llm, dataclasses.replace(params, n=1, seed=seed)) for seed in (11, 12, 13)]
    assert [each.index for each in output.outputs] == [0, 1, 2]
    assert [each.token_ids for each in output.outputs] == [each.token_ids for each in alone]
    assert [each.text for each in output.outputs] == [each.text for each in alone]
    assert len({tuple(each.token_ids) for each in alone}) == 3
    unseeded = llm.generate(PROMPT, dataclasses.replace(params, seed=None))[0].outputs
    assert len({tuple(each.token_ids) for each in unseeded}) == 3


def test_without_detokenize(llm):
    found = answer(llm, changed(detokenize=False))
    assert (found.text, found.token_ids) == ("", PROMPTS[2]["tokens"][:20])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stop_token_ids": [512]}, "stop_token_ids: 512 is not in the vocabulary; ids go from 0 to 511"),
        ({"logit_bias": {600: 1.0}}, "logit_bias: 600 is not in the vocabulary; ids go from 0 to 511"),
    ],
)
def test_ids_beyond_the_vocabulary(llm, params, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        answer(llm, changed(**params))


def test_the_command_line_takes_the_same(where, capsys):
    def run(*options: str) -> dict[str, Any]:
        common = ("generate", "--model", str(TINY), "--device", where, "--dtype", "float32", "--json", "Hello there")
        assert cli.main([*common, "--max-tokens", "12", *options]) == 0
        return json.loads(capsys.readouterr().out)

    plain, hot = run(), ("--temperature", "2.5", "--seed", "3")
    drawn = run(*hot)["token_ids"]
    assert drawn != plain["token_ids"]
    for option in (("--top-k", "1"), ("--top-p", "1e-9"), ("--min-p", "1.0")):
        assert run(*hot, *option)["token_ids"] == plain["token_ids"]
    assert run("--repetition-penalty", "3.0")["token_ids"] != plain["token_ids"]
    stop = plain["text"][3:5]
    assert run("--stop", "never comes", "--stop", stop)["text"] == plain["text"][: plain["text"].index(stop)]
    assert cli.main(["generate", "--top-p", "0", "Hello"]) == 2
    assert "top_p is 0" in capsys.readouterr().err


@pytest.mark.parametrize("value", [10**400, 1e300, 1e-300])
@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32(llm, value):
    """They reach the kernel as the nearest number that it has."""
    for params in ({"repetition_penalty": value}, {"temperature": value}):
        found = [answer(llm, changed(**{"temperature": 1.0, "seed": 4, **params})).token_ids for _ in range(2)]
        assert found[0] == found[1] and len(found[0]) == 20
