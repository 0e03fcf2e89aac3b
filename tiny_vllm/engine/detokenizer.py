"""Text that grows token by token and never shows half a character (chapter 10).

A character may take several byte tokens, so a token's text alone is not enough: text is held back until its last
character is whole. And a token's text may depend on its neighbour (a leading space falls away at the start of a text),
so new tokens are decoded together with those that gave the last piece.

`tokenizers` has a DecodeStream that does the same, and raises where a byte-fallback vocabulary (Llama 2's) meets bytes
that are no character, as a model at a high temperature writes them.
"""

from __future__ import annotations

from tiny_vllm.models.tokenizer import Tokenizer

UNFINISHED = "\ufffd"  # what decode() makes of bytes that are not yet, or never, a character


class Detokenizer:
    """The text of one answer. `text` is what has been given out so far."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self.text = ""
        self._tokenizer, self._skip_special_tokens = tokenizer, skip_special_tokens
        self._context: list[int] = []  # the tokens of the last piece that was given out
        self._held: list[int] = []  # the tokens since

    def add(self, token_id: int) -> str:
        """The text that this token completes, perhaps none."""
        self._held.append(token_id)
        piece = self._piece()
        if not piece or piece.endswith(UNFINISHED):
            return ""
        return self._give(piece)

    def flush(self) -> str:
        """What is still held back at the end: an unfinished character becomes U+FFFD, as in a plain decode."""
        return self._give(self._piece())

    def _piece(self) -> str:
        """The text that the held tokens add after their context."""
        before, both = self._decode(self._context), self._decode(self._context + self._held)
        # Byte fallback turns a whole run of bytes into U+FFFD, those given out already too: then the held ones alone
        return both[len(before) :] if both.startswith(before) else self._decode(self._held)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special_tokens)

    def _give(self, piece: str) -> str:
        self.text += piece
        self._context, self._held = self._held, []
        return piece
