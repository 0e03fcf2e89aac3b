"""The text of an answer from its tokens: characters whole, stop strings cut, the stream joining to the final text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_stop import cut
from tiny_vllm.engine.output_text import OutputText
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.types import SamplingParams

TOKENIZER = Tokenizer.from_folder(Path(__file__).parents[1] / "data" / "tiny" / "tiny")
EOS = 511


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def texts_of(ids: list[int], finish_reason: str = "length", **params: Any) -> tuple[list[str], str | None]:
    """The text after each token until the answer ends, and the stop string."""
    output, texts = OutputText(TOKENIZER, SamplingParams(max_tokens=1000, **params)), []
    for index, token_id in enumerate(ids):
        stop = output.add(token_id, finish_reason if index == len(ids) - 1 else None)
        texts.append(output.text)
        if stop is not None:
            return texts, stop
    return texts, None


def test_a_stop_string_of_three_tokens_never_shows():
    """Hazard row: stop string "</end>" that spans 3 tokens: the streamed text never holds a part of it."""
    ids = ids_of("the end is </end> no more")
    assert len(ids_of("</end>")) >= 3
    texts, stop = texts_of(ids, stop="</end>")
    assert (texts[-1], stop) == ("the end is ", "</end>")
    assert not any("<" in text for text in texts)
    assert texts_of(ids, stop=["</end>"], include_stop_str_in_output=True)[0][-1] == "the end is </end>"


def test_characters_of_several_tokens_come_whole():
    """Hazard row: multi-byte UTF-8 shown as U+FFFD in a stream."""
    text = "é😀 नमस्ते 漢字 👩‍👩‍👧‍👦"
    texts, stop = texts_of(ids_of(text))
    assert (texts[-1], stop) == (text, None)
    assert not any("\ufffd" in each for each in texts)


def test_a_stop_string_of_characters_of_several_tokens():
    text = "नमस्ते 😀 ok"
    for stop in ("स्ते", "😀", "े 😀 o"):
        texts, found = texts_of(ids_of(text), stop=stop)
        assert (texts[-1], found) == (text[: text.index(stop)], stop)


def test_any_tokens_join_to_the_final_text(rng):
    """The joined stream is the cut of the plain decode, whatever the tokens are."""
    num_stopped = 0
    for length in rng.integers(1, 60, 300):
        ids = rng.integers(0, TOKENIZER.vocab_size - 10, length).tolist()
        whole = TOKENIZER.decode(ids)
        stops = [whole[start : start + int(rng.integers(1, 6))] for start in rng.integers(0, len(whole), 2) if whole]
        stops = [stop for stop in stops if stop] if rng.random() < 0.7 else []
        texts, found = texts_of(ids, stop=stops)
        assert (texts[-1], found) == cut(whole, stops)
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
        num_stopped += found is not None
    assert 50 < num_stopped < 280


def test_what_might_have_been_a_stop_string_comes_at_the_end():
    for finish_reason in ("length", "stop"):
        ids = [*ids_of("ab </"), *([5] if finish_reason == "stop" else [])]
        texts, stop = texts_of(ids, finish_reason, stop="</end>")
        assert (texts[-2].rstrip(), texts[-1], stop) == ("ab", "ab </", None)


def test_a_token_that_ends_a_sequence_has_no_text():
    word = ids_of("left")
    assert texts_of([*word, *ids_of("!")], finish_reason="stop")[0][-1] == "left"
    included = texts_of([*word, *ids_of("!")], finish_reason="stop", include_stop_str_in_output=True)
    assert included[0][-1] == "left!"


def test_skip_special_tokens():
    ids = [*ids_of("left"), EOS, *ids_of(" right")]
    assert texts_of(ids)[0][-1] == "left right"
    assert texts_of(ids, skip_special_tokens=False)[0][-1] == "left<|im_end|> right"
    texts, stop = texts_of(ids, skip_special_tokens=False, stop="<|im_end|>")
    assert (texts[-1], stop) == ("left", "<|im_end|>")


def test_no_stop_string_ends_within_min_tokens():
    ids = ids_of("a b a b a b")
    first, _ = texts_of(ids, stop=" b")
    later, _ = texts_of(ids, stop=" b", min_tokens=len(ids_of("a b a b")))
    assert (first[-1], later[-1]) == ("a", "a b a b a")


@pytest.mark.parametrize("tokenizer", [None, TOKENIZER])
def test_without_detokenize_there_is_no_text(tokenizer):
    output = OutputText(tokenizer, SamplingParams(detokenize=False))
    assert [output.add(5), output.add(6, "length")] == [None, None]
    assert output.text == ""
