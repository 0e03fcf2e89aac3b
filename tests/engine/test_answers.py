"""When an answer ends and what it holds, with a model that is a script."""

from __future__ import annotations

import itertools
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_vllm.engine.block_pool import PrefixCachingBlockPool
from tiny_vllm.engine.draws import Drawer
from tiny_vllm.engine.inputs import RequestMaker
from tiny_vllm.engine.llm_engine import LLMEngine, Parts
from tiny_vllm.engine.output_processor import fork
from tiny_vllm.engine.scheduler import Scheduler
from tiny_vllm.errors import UserError
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.types import Array, Request, RequestOutput, SamplingParams, StepPlan

TOKENIZER = Tokenizer.from_folder(Path(__file__).parents[1] / "data" / "tiny" / "tiny")
EOS, OTHER_EOS = 511, 77
PROMPT = [5, 6, 7]


class Script:
    """A runner whose request says the given tokens whatever its prompt, and that notes the steps it was given."""

    device: Any
    num_rows = 4

    def __init__(self, says: list[int], prompt_len: int = len(PROMPT)) -> None:
        self.says, self.prompt_len = says, prompt_len
        self.last_ids = self.device.zeros((self.num_rows,), np.int32)
        self.steps: list[tuple[int, int]] = []

    def forward(self, plan: StepPlan, last_only: bool = False) -> Array:
        self.steps += [(part.start, len(part.token_ids)) for part in plan.requests]
        self._positions = [position for part in plan.requests for position in range(part.start, part.end)]
        return self._logits([part.end - 1 for part in plan.requests if part.is_sampled])

    def logits_of(self, rows: list[int]) -> Array:
        return self._logits([self._positions[row] for row in rows])

    def forget(self, request_id: str) -> None:
        """Nothing is kept."""

    def _logits(self, positions: list[int]) -> Array:
        logits = np.zeros((len(positions), 512), np.float32)
        for row, position in zip(logits, positions, strict=True):
            row[self.says[min(max(position + 1 - self.prompt_len, 0), len(self.says) - 1)]] = 9.0
        return self.device.asarray(logits)


@pytest.fixture(autouse=True)
def script_device(device):
    Script.device = device


class Argmax:
    def sample(self, logits: Array, requests: list[Request]) -> list[int]:
        return logits.argmax(axis=1).tolist()


def make_engine(
    script: Script, max_model_len: int = 100, budget: int = 100, overlapped: bool = False, eos: tuple[int, ...] = ()
) -> LLMEngine:
    runner: Any = script
    pool = PrefixCachingBlockPool(64, 16)
    eos = eos or (EOS, OTHER_EOS)
    scheduler = Scheduler(
        pool, max_num_seqs=4, max_num_batched_tokens=budget, max_model_len=max_model_len, eos_token_ids=eos
    )
    parts = Parts(runner, scheduler, pool, Drawer(runner, Argmax(), TOKENIZER))
    return LLMEngine(parts, TOKENIZER, RequestMaker(TOKENIZER, 512, max_model_len), eos, overlapped)


def run(
    says: list[int], max_model_len: int = 100, budget: int = 100, **params: Any
) -> tuple[list[RequestOutput], Script]:
    """What one request becomes, in the plain loop; in the overlapped one, and read at the end only, it is the same."""
    found = []
    for overlapped, final_only in itertools.product((False, True), (False, True)):
        script = Script(says)
        engine = make_engine(script, max_model_len, budget, overlapped)
        prompt = {"prompt": "a prompt", "prompt_token_ids": PROMPT}
        engine.add_request("r", prompt, SamplingParams(**{"temperature": 0.0, **params}), final_only=final_only)
        outputs = []
        while engine.has_unfinished_requests():
            outputs += engine.step()
        found.append((outputs, script))
    for outputs, _ in found[1:]:
        assert outputs[-1] == found[0][0][-1]
    assert found[2][0] == found[0][0] and len(found[1][0]) == len(found[3][0]) == 1
    return found[0]


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


def test_the_last_output_is_a_copy_too():
    """Hazard: the prompt of a finished request handed out as it is, while the caller holds the Request."""
    engine = make_engine(Script([40]))
    request = engine.make_request("r", {"prompt_token_ids": PROMPT}, SamplingParams(0.0, max_tokens=1))
    engine.add_request("r", request)
    [output] = engine.step()
    assert output.finished
    output.prompt_token_ids.append(1)
    assert request.prompt_token_ids == PROMPT


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


def test_a_closed_engine_says_so():
    engine = make_engine(Script([40, 41, 42]))
    engine.add_request("r", {"prompt_token_ids": PROMPT}, SamplingParams(0.0, max_tokens=3))
    engine.step()
    engine.close()
    with pytest.raises(UserError, match=r"^this LLM is closed; make a new one$"):
        engine.step()
    assert not engine.has_unfinished_requests()


def words(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_stop_token_ids_end_the_answer_whatever_ignore_eos_says(ignore_eos):
    outputs, _ = run([*words("one two"), 90, 9], max_tokens=50, stop_token_ids=[90, 3], ignore_eos=ignore_eos)
    assert ends(outputs) == ([*words("one two"), 90], "stop")
    answer = outputs[-1].outputs[0]
    assert (answer.text, answer.stop_reason) == ("one two", 90)


@pytest.mark.parametrize(("include", "text"), [(False, "one"), (True, "one two")])
def test_a_stop_string_ends_the_answer(include, text):
    """Hazard row: stop string split over tokens; leaked part streamed; cut wrongly."""
    says = words("one two three four")
    outputs, _ = run(says, max_tokens=50, stop=" two", include_stop_str_in_output=include)
    answer = outputs[-1].outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == (text, "stop", " two")
    assert len(answer.token_ids) < len(says)
    texts = [output.outputs[0].text for output in outputs]
    assert all(text.startswith(each) for each in texts)


def test_a_stop_string_on_the_last_allowed_token_is_a_stop():
    outputs, _ = run(words("ab cd"), max_tokens=len(words("ab cd")), stop=["cd"])
    assert (outputs[-1].outputs[0].text, outputs[-1].outputs[0].finish_reason) == ("ab ", "stop")


def test_what_was_held_back_comes_at_the_end():
    outputs, _ = run(words("ab cd"), max_tokens=len(words("ab cd")), stop=["cd!"])
    assert (outputs[-1].outputs[0].text, outputs[-1].outputs[0].finish_reason) == ("ab cd", "length")


def test_n_answers_come_together():
    outputs, _ = run([40, 41, 42], max_tokens=3, n=2, temperature=1.0, seed=5)
    assert [[len(answer.token_ids) for answer in output.outputs] for output in outputs] == [[1, 1], [2, 2], [3, 3]]
    assert [output.finished for output in outputs] == [False, False, True]
    assert [(answer.index, answer.token_ids) for answer in outputs[-1].outputs] == [
        (0, [40, 41, 42]),
        (1, [40, 41, 42]),
    ]
    assert {output.request_id for output in outputs} == {"r"}


def test_the_seeds_of_n_answers_follow_each_other():
    request = Request("r", PROMPT, SamplingParams(n=3, seed=2**64 - 2), output_token_ids=[])
    children = fork(request)
    assert [child.params.seed for child in children] == [2**64 - 2, 2**64 - 1, 0]
    assert len({child.request_id for child in children}) == 3 and {child.params.n for child in children} == {1}
    assert fork(Request("r", PROMPT, SamplingParams(seed=2)))[0].params == SamplingParams(seed=2)


def test_prompt_logprobs_are_one_for_each_token_of_the_prompt():
    outputs, script = run([40, 41], max_tokens=2, prompt_logprobs=1)
    found = outputs[-1].prompt_logprobs or []
    assert found[0] is None and len(found) == len(PROMPT)
    assert [list(each or {}) for each in found[1:]] == [[40, PROMPT[1]], [40, PROMPT[2]]]
    assert script.steps == [(0, 3), (3, 1)]
    assert run([40], max_tokens=1)[0][-1].prompt_logprobs is None


def test_without_detokenize_there_is_no_text():
    outputs, _ = run([40, 41, EOS], max_tokens=9, detokenize=False, logprobs=1)
    answer = outputs[-1].outputs[0]
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("", [40, 41, EOS], "stop")
    assert [item.decoded_token for item in (answer.logprobs or [])[0].values()] == [None]
