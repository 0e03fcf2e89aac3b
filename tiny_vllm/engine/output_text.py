"""The text of an answer, token by token: detokenized, searched for stop strings, and safe to show at every moment."""

from __future__ import annotations

from tiny_vllm.engine.detokenizer import Detokenizer
from tiny_vllm.engine.stop import StopStrings
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.types import SamplingParams


class OutputText:
    """`text` only grows, and when the answer has ended it is the whole text of the answer.

    tokenizer: None will do where params.detokenize is False, and the text is then "".
    """

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams) -> None:
        self._params, self._num_tokens = params, 0
        self._stop = StopStrings(params.stop, params.include_stop_str_in_output)
        self._detokenizer: Detokenizer | None = None
        if params.detokenize:
            assert tokenizer is not None, "text needs a tokenizer"
            self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens)

    @property
    def text(self) -> str:
        return self._stop.text

    def add(self, token_id: int, finish_reason: str | None = None) -> str | None:
        """Take in the next token; returns the stop string that ends the answer here, if one does.

        finish_reason: why the answer ends with this token as far as tokens tell: "stop" for one that ends a sequence,
        which has no text unless include_stop_str_in_output; "length"; None.
        """
        self._num_tokens += 1
        if self._detokenizer is None:
            return None
        searched = self._num_tokens > self._params.min_tokens
        if finish_reason != "stop" or self._params.include_stop_str_in_output:
            self._stop.add(self._detokenizer.add(token_id), searched)
        if finish_reason:
            self._stop.add(self._detokenizer.flush(), searched)
            self._stop.flush()
        return self._stop.found
