"""Stop strings: where a text is cut, and that no part of one that completes is ever shown."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from tiny_vllm.engine.stop import StopStrings


def cut(text: str, stops: Sequence[str], include: bool = False) -> tuple[str, str | None]:
    """Where a whole text ends, by the definition: at the first character that completes a stop string."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def stream(pieces: Sequence[str], stops: Sequence[str], include: bool = False) -> tuple[list[str], StopStrings]:
    """The text after each piece, and at the end."""
    checker, texts = StopStrings(stops, include), []
    for piece in pieces:
        checker.add(piece)
        texts.append(checker.text)
    checker.flush()
    return [*texts, checker.text], checker


@pytest.mark.parametrize(
    ("pieces", "stops", "texts", "found"),
    [
        (["ab", "</", "en", "d>", "x"], ["</end>"], ["ab", "ab", "ab", "ab", "ab", "ab"], "</end>"),  # three tokens
        (["ab", "</", "en", "dx"], ["</end>"], ["ab", "ab", "ab", "ab</endx", "ab</endx"], None),
        (["one STOP two"], ["STOP"], ["one ", "one "], "STOP"),  # text behind it in the same token
        (["a", "a", "a", "b"], ["aab"], ["", "", "a", "a", "a"], "aab"),  # "aab" in "aaab"
        (["x", "yz", "q"], ["yzz", "q"], ["x", "x", "xyz", "xyz"], "q"),
        (["abc"], ["c", "b"], ["a", "a"], "b"),  # the first in the text, not in the list
        (["ab", "c"], ["bc", "c"], ["a", "a", "a"], "bc"),  # complete at once: the one that begins first
        (["é", "😀", "न", "!"], ["😀न"], ["é", "é", "é", "é", "é"], "😀न"),
        (["ab", "ab"], ["abab"], ["", "", ""], "abab"),
        (["a", "b"], ["abc"], ["", "", "ab"], None),  # held back to the end
        (["", "a", ""], ["b"], ["", "a", "a", "a"], None),
        (["a"], [], ["a", "a"], None),
    ],
)
def test_texts_as_they_grow(pieces, stops, texts, found):
    """Hazard row: stop string split over tokens; leaked part streamed; cut wrongly."""
    assert stream(pieces, stops)[0] == texts
    assert stream(pieces, stops)[1].found == found


@pytest.mark.parametrize("include", [False, True])
def test_any_text_in_any_pieces_is_cut_as_the_whole_text_is(include):
    rng = random.Random(5)
    ended = 0
    for _ in range(3000):
        alphabet = rng.choice(["ab", "abc", "é😀"])
        text = "".join(rng.choices(alphabet, k=rng.randrange(30)))
        stops = ["".join(rng.choices(alphabet, k=rng.randrange(1, 6))) for _ in range(rng.randrange(4))]
        ends = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(rng.randrange(12)))})
        texts, checker = stream([text[a:b] for a, b in pairwise(ends)], stops, include)
        assert (checker.text, checker.found) == cut(text, stops, include)
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts)), "what was shown is taken back"
        ended += checker.found is not None
    assert 500 < ended < 2500


def test_nothing_is_held_that_cannot_begin_a_stop_string():
    checker = StopStrings(["</end>", "\n\n"])
    for piece in ("a <", "b", "\n", "c\n", "d"):
        checker.add(piece)
    assert checker.text == "a <b\nc\nd"
    checker.add("x</e")
    assert checker.text == "a <b\nc\ndx"


def test_text_that_is_not_searched():
    """min_tokens: a stop string may end only behind it, though it may begin in it."""
    checker = StopStrings(["ab"])
    checker.add("xabab", searched=False)
    assert (checker.text, checker.found) == ("xabab", None)
    checker.add("a", searched=False)
    checker.add("b")
    assert (checker.text, checker.found) == ("xabab", "ab")
    overlapping = StopStrings(["abab"])
    overlapping.add("abab", searched=False)
    assert overlapping.text == "ab"
    overlapping.add("ab")
    assert (overlapping.text, overlapping.found) == ("ab", "abab")
