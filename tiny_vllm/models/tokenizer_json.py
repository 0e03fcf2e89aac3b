"""Builds tokenizer.json of a byte-level BPE (GPT-2's kind), for checkpoints that are converted or made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}  # GPT-2's regex
DIGITS = {"type": "Digits", "individual_digits": True}  # every digit is a word of its own


def special_tokens(tokens: Mapping[int, str]) -> list[dict[str, Any]]:
    """The entries of added_tokens for {id: text}: tokens that text is split at first."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": token_id, "content": text, **flags} for token_id, text in tokens.items()]


def added_tokens_decoder(added: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same entries in tokenizer_config.json's form: by id."""
    return {str(entry["id"]): {key: value for key, value in entry.items() if key != "id"} for entry in added}


def byte_level_bpe(
    tokens: Sequence[str],
    merges: Sequence[str],
    added: Sequence[Mapping[str, Any]],
    pre_tokenizer: Mapping[str, Any] = BYTE_LEVEL,
    decoder: Mapping[str, Any] = BYTE_LEVEL,
) -> dict[str, Any]:
    """tokenizer.json.

    tokens: text of each id, in GPT-2's visible letters for bytes; merges: "a b", the first has the highest rank;
    added: from special_tokens. Nothing adds a beginning-of-sequence token.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }
