"""Every value of SamplingParams is checked: the error names it, its limit and the way out."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tiny_vllm.errors import UserError
from tiny_vllm.sampling_params import MAX_LOGIT_BIASES, MAX_LOGPROBS, MAX_SEED, MAX_STOP_TOKEN_IDS
from tiny_vllm.types import SamplingParams

NAN, INF = float("nan"), float("inf")
WRONG: dict[str, list[Any]] = {
    "n": [0, -1, 1.5, "2", True, None],
    "temperature": [-0.1, NAN, INF, "hot", None, True],
    "top_k": [-2, 1.0, "3", True],
    "top_p": [0, 0.0, -0.1, 1.01, NAN, "0.5"],
    "min_p": [-0.1, 1.01, NAN],
    "repetition_penalty": [0, -1.0, NAN, INF],
    "presence_penalty": [-2.1, 2.1, NAN],
    "frequency_penalty": [-2.1, 2.1, NAN, "1"],
    "logit_bias": [[1], {"1": 0.5}, {-1: 0.5}, {1: 101.0}, {1: NAN}, {1: "x"}, {1.0: 2.0}],
    "seed": [-1, 2**64, 1.0, "7"],
    "max_tokens": [0, -3, 2.0, None],
    "min_tokens": [-1, 1.0, None],
    "stop": ["", [""], ["a", 3], 5, b"a", {"a": 1}, None],
    "stop_token_ids": [3, [-1], ["1"], [1.0], [True], "12"],
    "ignore_eos": [1, None, "yes"],
    "logprobs": [-1, MAX_LOGPROBS + 1, 1.0],
    "prompt_logprobs": [-1, MAX_LOGPROBS + 1, True],
    "detokenize": [0, None],
    "skip_special_tokens": [0, "no"],
    "include_stop_str_in_output": [1, None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_values(name, value):
    with pytest.raises(UserError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert name in message and "give" in message and "\n" not in message
    if name != "logit_bias":
        assert repr(value) in message


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -1}, "temperature is -1; give a finite number of at least 0"),
        ({"top_p": 0}, "top_p is 0; give a finite number above 0 and at most 1"),
        ({"top_k": -2}, "top_k is -2; give a whole number of at least 0, or -1"),
        ({"logprobs": 21}, "logprobs is 21; give a whole number of at least 0 and at most 20"),
        ({"min_tokens": 17}, "min_tokens is 17 and max_tokens 16; lower one, raise the other"),
        ({"n": 2, "temperature": 0}, "n is 2 and temperature 0: 2 equal answers; give n=1"),
        ({"stop": "a", "detokenize": False}, "stop needs the text, and detokenize is False; leave one of them out"),
        (
            {"logit_bias": {7: 200}},
            "logit_bias of token id 7 is 200; give a finite number of at least -100 and at most 100",
        ),
        (
            {"logit_bias": dict.fromkeys(range(MAX_LOGIT_BIASES + 1), 1.0)},
            f"logit_bias has {MAX_LOGIT_BIASES + 1} token ids; give at most {MAX_LOGIT_BIASES}",
        ),
    ],
)
def test_messages(params, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        SamplingParams(**params)


def test_too_many_stop_token_ids():
    with pytest.raises(UserError, match=f"at most {MAX_STOP_TOKEN_IDS}$"):
        SamplingParams(stop_token_ids=range(MAX_STOP_TOKEN_IDS + 1))


def test_the_limits_themselves_are_allowed():
    SamplingParams(
        temperature=0, top_k=-1, top_p=1, min_p=1, repetition_penalty=1e-3, presence_penalty=-2, frequency_penalty=2,
        logit_bias={0: 100, 5: -100.0}, seed=MAX_SEED, max_tokens=1, min_tokens=1, stop_token_ids=[0],
        logprobs=MAX_LOGPROBS, prompt_logprobs=0, n=1,
    )  # fmt: skip


def test_one_stop_or_several_and_no_view_of_the_callers_lists():
    stops, ids, bias = ["a", "b"], [1, 2], {3: 1.0}
    params = SamplingParams(stop=stops, stop_token_ids=ids, logit_bias=bias)
    stops.append("c")
    ids.append(3)
    bias[4] = 2.0
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("a", "b"), (1, 2), {3: 1.0})
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams().stop == ()


def test_what_is_greedy_and_what_has_penalties():
    assert [SamplingParams(temperature).is_greedy for temperature in (0, 9e-6, 1e-5, 1.0)] == [True, True, False, False]
    assert SamplingParams(top_k=1).is_greedy and not SamplingParams(top_k=2).is_greedy
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        params: dict[str, Any] = {name: 1.1}
        assert SamplingParams(**params).has_penalties
    assert not SamplingParams().has_penalties


def test_numbers_of_numpy_are_numbers():
    given: dict[str, Any] = {
        "temperature": np.float32(0.5), "max_tokens": np.int64(3), "seed": np.uint64(MAX_SEED), "top_k": np.int32(4),
        "stop_token_ids": [np.int64(7)], "logit_bias": {np.int64(3): np.float32(1.5)},
    }  # fmt: skip
    params = SamplingParams(**given)
    assert params == SamplingParams(0.5, 3, seed=MAX_SEED, top_k=4, stop_token_ids=[7], logit_bias={3: 1.5})
    assert {type(params.max_tokens), type(params.seed), type(params.stop_token_ids[0])} == {int}


def test_more_answers_than_anyone_reads():
    with pytest.raises(UserError, match="n is 1000000000; give a whole number of at least 1 and at most 16384"):
        SamplingParams(n=10**9)
