"""When an answer ends and what it holds, with a model that is a script."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tiny_vllm.engine.core import Engine
from tiny_vllm.errors import UserError
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.types import Request, RequestOutput, SamplingParams, StepPlan

TOKENIZER = Tokenizer.from_folder(Path(__file__).parents[1] / "data" / "tiny" / "tiny")
EOS, OTHER_EOS = 511, 77
PROMPT = [5, 6, 7]


class Script:
    """A runner whose request says the given tokens whatever its prompt, and that notes the steps it was given."""

    def __init__(self, says: list[int], prompt_len: int = len(PROMPT), budget: int = 100) -> None:
        self.says, self.prompt_len, self.max_num_batched_tokens = says, prompt_len, budget
        self.device = SimpleNamespace(to_host=lambda logits: logits)
        self.steps: list[tuple[int, int]] = []

    def step(self, request: Request, plan: StepPlan) -> np.ndarray:
        start, count = request.num_computed_tokens, plan.num_scheduled_tokens[request.request_id]
        self.steps.append((start, count))
        logits = np.zeros((1, 512), np.float32)
        logits[0, self.says[max(start + count - self.prompt_len, 0)]] = 9.0
        return logits


class Argmax:
    def sample(self, logits: np.ndarray, requests: list[Request]) -> list[int]:
        return logits.argmax(axis=1).tolist()


def run(
    says: list[int], max_model_len: int = 100, budget: int = 100, **params: Any
) -> tuple[list[RequestOutput], Script]:
    script = Script(says, budget=budget)
    runner: Any = script
    engine = Engine(runner, Argmax(), TOKENIZER, (EOS, OTHER_EOS), max_model_len)
    outputs = list(engine.generate_stream(Request("r", PROMPT, SamplingParams(0.0, **params), "a prompt")))
    return outputs, script


def ends(outputs: list[RequestOutput]) -> tuple[list[int], str | None]:
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert all(output.outputs[0].finish_reason is None for output in outputs[:-1])
    return outputs[-1].outputs[0].token_ids, outputs[-1].outputs[0].finish_reason


@pytest.mark.parametrize("eos", [EOS, OTHER_EOS])
def test_any_end_of_sequence_token_stops(eos):
    words = TOKENIZER.encode("one two", add_special_tokens=False)
    outputs, _ = run([*words, eos, 9], max_tokens=50)
    assert ends(outputs) == ([*words, eos], "stop")
    assert outputs[-1].outputs[0].text == "one two"  # even where that token is an ordinary one, as 77 is


def test_ignore_eos_beats_the_list():
    outputs, _ = run([EOS, 40, EOS, 41, 42], max_tokens=4, ignore_eos=True)
    assert ends(outputs) == ([EOS, 40, EOS, 41], "length")
    assert outputs[-1].outputs[0].text == TOKENIZER.decode([40, 41])


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_max_tokens(max_tokens):
    outputs, _ = run([40, 41, 42, 43, 44, 45], max_tokens=max_tokens)
    assert ends(outputs) == ([40, 41, 42, 43, 44, 45][:max_tokens], "length")


def test_an_end_on_the_last_allowed_token_is_a_stop():
    assert ends(run([40, EOS], max_tokens=2)[0]) == ([40, EOS], "stop")


@pytest.mark.parametrize(("max_model_len", "count"), [(4, 1), (5, 2), (7, 4)])
def test_max_model_len_bounds_prompt_and_answer_together(max_model_len, count):
    outputs, script = run([40, 41, 42, 43, 44], max_model_len=max_model_len, max_tokens=50)
    assert ends(outputs) == ([40, 41, 42, 43, 44][:count], "length")
    assert max(start + length for start, length in script.steps) < max_model_len  # the last token is never fed back


@pytest.mark.parametrize(
    ("budget", "chunks"), [(1, [(0, 1), (1, 1), (2, 1)]), (2, [(0, 2), (2, 1)]), (3, [(0, 3)]), (4, [(0, 3)])]
)
def test_the_prompt_comes_in_chunks_and_each_token_once(budget, chunks):
    outputs, script = run([40, 41, 42], budget=budget, max_tokens=3)
    assert script.steps == [*chunks, (3, 1), (4, 1)]
    assert ends(outputs)[0] == [40, 41, 42]


def test_each_output_is_a_copy():
    outputs, _ = run([40, 41, 42], max_tokens=3, logprobs=1)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3]
    assert [len(output.outputs[0].logprobs or []) for output in outputs] == [1, 2, 3]
    outputs[0].outputs[0].token_ids.append(1)
    outputs[0].prompt_token_ids.append(1)
    assert outputs[1].prompt_token_ids == PROMPT and outputs[1].outputs[0].token_ids == [40, 41]
    assert (outputs[0].request_id, outputs[0].prompt) == ("r", "a prompt")


def test_texts_grow_and_hold_no_half_character():
    ids = TOKENIZER.encode("é😀!", add_special_tokens=False)
    texts = [output.outputs[0].text for output in run([*ids, EOS], max_tokens=50)[0]]
    assert texts[-1] == "é😀!"
    assert not any("\ufffd" in text for text in texts)
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


def test_an_answer_cut_within_a_character_says_so():
    ids = TOKENIZER.encode("😀", add_special_tokens=False)
    outputs, _ = run(ids, max_tokens=len(ids) - 1)
    assert outputs[-1].outputs[0].text == TOKENIZER.decode(ids[:-1])
    assert "\ufffd" in outputs[-1].outputs[0].text


def test_no_logprobs_unless_asked():
    assert run([40, 41], max_tokens=2)[0][-1].outputs[0].logprobs is None
    outputs, _ = run([40, 41], max_tokens=2, logprobs=0)
    assert [list(position) for position in outputs[-1].outputs[0].logprobs or []] == [[40], [41]]


def test_closing_ends_a_stream_that_is_still_open():
    runner: Any = Script([40, 41, 42])
    engine = Engine(runner, Argmax(), TOKENIZER, (EOS,), 100)
    stream = engine.generate_stream(Request("r", PROMPT, SamplingParams(0.0, max_tokens=3)))
    next(stream)
    engine.close()
    with pytest.raises(UserError, match=r"^this LLM is closed; make a new one$"):
        next(stream)
