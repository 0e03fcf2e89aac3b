"""Prompts and their mistakes: each is met before anything runs, in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiny_vllm.engine.inputs import RequestMaker, as_list, pair_params
from tiny_vllm.errors import UserError
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.types import SamplingParams

TOKENIZER = Tokenizer.from_folder(Path(__file__).parents[1] / "data" / "tiny" / "tiny")
MAKER = RequestMaker(TOKENIZER, vocab_size=512, max_model_len=8)
GREEDY = SamplingParams(0.0)


def test_the_forms_of_a_prompt():
    ids = TOKENIZER.encode("a b")
    for prompt, text in [("a b", "a b"), ({"prompt": "a b"}, "a b"), ({"prompt_token_ids": ids}, None)]:
        request = MAKER.make("7", prompt, GREEDY)
        assert (request.request_id, request.prompt, request.prompt_token_ids) == ("7", text, ids)
    both = MAKER.make("7", {"prompt": "shown", "prompt_token_ids": np.array([3, 4])}, GREEDY)
    assert (both.prompt, both.prompt_token_ids) == ("shown", [3, 4])
    assert all(type(token_id) is int for token_id in both.prompt_token_ids)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt '' has no tokens and this tokenizer adds no BOS token; give some text"),
        ({"prompt_token_ids": []}, "prompt_token_ids is empty; give at least one token id"),
        ({"prompt_token_ids": [3, 512]}, "token id 512 is not in the vocabulary; ids go from 0 to 511"),
        ({"prompt_token_ids": [-1]}, "token id -1 is not in the vocabulary; ids go from 0 to 511"),
        ({"prompt_token_ids": [1.0]}, "prompt_token_ids holds 1.0; give whole numbers"),
        ({"prompt_token_ids": [True]}, "prompt_token_ids holds True; give whole numbers"),
        ({"prompt_token_ids": "12"}, "prompt_token_ids is '12'; give a list of token ids"),
        ({"prompt_token_ids": 12}, "prompt_token_ids is 12; give a list of token ids"),
        ({"prompt_token_ids": np.array(5)}, r"prompt_token_ids is array\(5\); give a list of token ids"),
        ({"text": "a"}, r"a prompt is {'text': 'a'}; give a text, .*"),
        (12, "a prompt is 12; give a text, .*"),
        (None, "a prompt is None; give a text, .*"),
        ({"prompt_token_ids": [1] * 8}, "the prompt has 8 tokens and max_model_len is 8, which leaves room for 7 .*"),
        ({"prompt_token_ids": [1] * 900}, "the prompt has 900 tokens .*; shorten the prompt or raise max_model_len"),
    ],
)
def test_mistakes_in_a_prompt(prompt, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        MAKER.make("0", prompt, GREEDY)


def test_the_longest_prompt_leaves_room_for_one_token():
    assert len(MAKER.make("0", {"prompt_token_ids": [1] * 7}, GREEDY).prompt_token_ids) == 7


def test_an_open_seed_is_drawn_once_for_each_request():
    seeds = {MAKER.make("0", "a", SamplingParams()).params.seed for _ in range(5)}
    assert len(seeds) == 5 and None not in seeds
    assert MAKER.make("0", "a", SamplingParams(seed=3)).params.seed == 3


def test_one_prompt_or_several():
    assert as_list("ab") == ["ab"]
    assert as_list({"prompt": "a"}) == [{"prompt": "a"}]
    assert as_list(["a", {"prompt": "b"}]) == ["a", {"prompt": "b"}]
    assert as_list(("a",)) == ["a"]
    for wrong in (None, 3, b"ab"):
        with pytest.raises(UserError, match=r"^a prompt is"):
            as_list(wrong)


def test_params_for_all_or_for_each():
    assert pair_params(2, None) == [SamplingParams()] * 2
    assert pair_params(2, GREEDY) == [GREEDY] * 2
    assert pair_params(2, [GREEDY, SamplingParams()]) == [GREEDY, SamplingParams()]
    with pytest.raises(UserError, match=r"^1 sampling_params for 2 prompts; give one for all, or one for each$"):
        pair_params(2, [GREEDY])
    for wrong in ({"temperature": 0}, [0.5, GREEDY], "greedy"):
        with pytest.raises(UserError, match=r"^sampling_params is"):
            pair_params(2, wrong)
