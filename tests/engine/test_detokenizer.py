"""Streams of text: no half character, and the pieces join to the plain decode."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from tiny_vllm.engine.detokenizer import Detokenizer
from tiny_vllm.models import tokenizer as ours

TINY = Path(__file__).parents[1] / "data" / "tiny" / "tiny"
WORDS = ["▁", "▁Hello", "▁world", "a", "b", "lo"]


def byte_level() -> ours.Tokenizer:
    return ours.Tokenizer.from_folder(TINY)


def byte_fallback() -> ours.Tokenizer:
    """A vocabulary as Llama 2's: words with a mark for the space, bytes 0x00 to 0xFF as ids 3 to 258."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    inner = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    inner.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return ours.Tokenizer(inner, {}, Path("byte_fallback"))


def bytes_of(text: str) -> list[int]:
    return [3 + byte for byte in text.encode()]


def pieces(tokenizer: ours.Tokenizer, ids: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer)
    found = [stream.add(token_id) for token_id in ids]
    found.append(stream.flush())
    assert "".join(found) == stream.text
    return found


@pytest.mark.parametrize("text", ["plain words", "é😀 नमस्ते 漢字", "a😀b\n\n😀", "👩‍👩‍👧‍👦 flags 🇳🇵"])
def test_characters_of_several_tokens_come_whole(text):
    tokenizer = byte_level()
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = pieces(tokenizer, ids)
    assert not any("\ufffd" in piece for piece in found)
    assert "".join(found) == text
    if not text.isascii():
        assert len(ids) > sum(bool(piece) for piece in found)  # some token alone was no character


def test_any_ids_join_to_the_plain_decode(rng):
    tokenizer = byte_level()
    for length in rng.integers(1, 80, 300):
        ids = rng.integers(0, tokenizer.vocab_size, length).tolist()
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_stream_shows_text_early():
    tokenizer = byte_level()
    ids = tokenizer.encode("one two three", add_special_tokens=False)
    assert all(pieces(tokenizer, ids)[:-1])  # every token of plain text shows at once, and nothing is left for flush
    assert pieces(tokenizer, ids)[-1] == ""


def test_an_unfinished_character_appears_only_at_the_end():
    tokenizer = byte_level()
    ids = tokenizer.encode("ok😀", add_special_tokens=False)[:-1]
    found = pieces(tokenizer, ids)
    assert "\ufffd" not in "".join(found[:-1])
    assert found[-1].startswith("\ufffd")
    assert "".join(found) == tokenizer.decode(ids)


def test_special_tokens_are_left_out():
    tokenizer = byte_level()
    text = [tokenizer.encode(word, add_special_tokens=False) for word in ("left", " right")]
    eos = 511  # <|im_end|>
    assert tokenizer.token(eos) == "<|im_end|>"
    ids = [*text[0], eos, *text[1], eos]
    assert "".join(pieces(tokenizer, ids)) == "left right"


def test_byte_fallback_keeps_the_spaces_between_words():
    tokenizer = byte_fallback()
    hello, world = 259 + WORDS.index("▁Hello"), 259 + WORDS.index("▁world")
    ids = [hello, 1, world, *bytes_of("\n😀"), world]
    assert "".join(pieces(tokenizer, ids)) == "Hello world\n😀 world" == tokenizer.decode(ids)


def test_byte_fallback_survives_bytes_that_are_no_character(rng):
    tokenizer = byte_fallback()
    first_byte, letter = bytes_of("😀")[:1], [259 + WORDS.index("a")]
    for shown in ("\n", "é", "漢"):  # given out already when the run of bytes turns out to be broken
        assert "".join(pieces(tokenizer, bytes_of(shown) + first_byte + letter)) == shown + "\ufffda"
    for length in rng.integers(1, 40, 300):
        pieces(tokenizer, rng.integers(0, tokenizer.vocab_size, length).tolist())  # nothing raises
