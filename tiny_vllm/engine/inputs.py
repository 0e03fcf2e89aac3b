"""From what a caller gives, a text or token ids, to a Request: every mistake is met here, before anything runs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiny_vllm.engine.int32 import bounds, bounds_of_plain
from tiny_vllm.errors import UserError
from tiny_vllm.models.chat_template import Messages
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.types import Request, SamplingParams

FORMS = 'a text, {"prompt": text} or {"prompt_token_ids": [ids]}'
SHOWN = 60  # characters of a wrong value that an error repeats


def as_list(prompts: Any) -> list[Any]:
    """One prompt or a sequence of them -> a list; a list of bare ids is refused, since it could mean either."""
    if isinstance(prompts, (str, dict)):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise UserError(f"a prompt is {_show(prompts)}; give {FORMS}, or a list of these")
    return list(prompts)


def as_conversations(messages: Any) -> list[Messages]:
    """One conversation or several -> a list of them."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise UserError(f'messages is {messages!r}; give [{{"role": "user", "content": text}}, ...]')
    return [messages] if isinstance(messages[0], dict) else list(messages)


def pair_params(count: int, params: Any) -> list[SamplingParams]:
    """SamplingParams for each of `count` prompts: the default, one for all, or as many as there are prompts."""
    given = [SamplingParams() if params is None else params] * count
    if isinstance(params, Sequence) and not isinstance(params, str):
        given = list(params)
        if len(given) != count:
            raise UserError(f"{len(given)} sampling_params for {count} prompts; give one for all, or one for each")
    for item in given:
        if not isinstance(item, SamplingParams):
            raise UserError(f"sampling_params is {_show(item)}; give SamplingParams(temperature=..., max_tokens=...)")
    return given


@dataclass(frozen=True)
class RequestMaker:
    """Makes requests that the engine can run: ids below vocab_size, at least one new token within max_model_len."""

    tokenizer: Tokenizer
    vocab_size: int
    max_model_len: int

    def make(self, request_id: str, prompt: Any, params: SamplingParams) -> Request:
        """prompt: a text, {"prompt": text} or {"prompt_token_ids": ids}; an open seed is drawn here, once."""
        text, token_ids, ends = self._tokenize(prompt)
        self._check_length(len(token_ids))
        self._check_ids(token_ids, "token id", ends)
        self._check_ids(params.stop_token_ids, "stop_token_ids:")
        self._check_ids(list(params.logit_bias or ()), "logit_bias:")
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(64))
        skip_cache = params.prompt_logprobs is not None  # a prefix from the cache would have no logits
        stops = frozenset(params.stop_token_ids)
        return Request(request_id, token_ids, params, text, stop_token_ids=stops, skip_reading_prefix_cache=skip_cache)

    def _tokenize(self, prompt: Any) -> tuple[str | None, list[int], tuple[int, int] | None]:
        """The text, if there is one; the ids; and the smallest and largest of them, where they are known already."""
        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        if isinstance(prompt, dict):
            _check_keys(prompt)
        if isinstance(prompt, dict) and "prompt_token_ids" in prompt:
            token_ids, ends = _plain_ids(prompt["prompt_token_ids"])
            if not token_ids:
                raise UserError("prompt_token_ids is empty; give at least one token id")
            return text, token_ids, ends
        if not isinstance(text, str):
            raise UserError(f"a prompt is {_show(prompt)}; give {FORMS}")
        token_ids = self.tokenizer.encode(text)
        if not token_ids:
            raise UserError(f"the prompt {text!r} has no tokens and this tokenizer adds no BOS token; give some text")
        return text, token_ids, None

    def _check_length(self, count: int) -> None:
        if count >= self.max_model_len:
            raise UserError(
                f"the prompt has {count} tokens and max_model_len is {self.max_model_len}, which leaves room for "
                f"{self.max_model_len - 1} of them and one new token; shorten the prompt or raise max_model_len"
            )

    def _check_ids(self, token_ids: Sequence[int], what: str, ends: tuple[int, int] | None = None) -> None:
        if not token_ids:
            return
        smallest, largest = ends or bounds(token_ids)
        if smallest >= 0 and largest < self.vocab_size:
            return
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size)
        raise UserError(f"{what} {wrong} is not in the vocabulary; ids go from 0 to {self.vocab_size - 1}")


def _check_keys(prompt: dict[str, Any]) -> None:
    """Nothing is accepted and ignored; a text beside the ids is what they were made from."""
    unknown = sorted(map(str, prompt.keys() - {"prompt", "prompt_token_ids"}))
    if unknown or not isinstance(prompt.get("prompt", ""), (str, type(None))):
        raise UserError(f"a prompt is {_show(prompt)}; give {FORMS}")


def _plain_ids(token_ids: Any) -> tuple[list[int], tuple[int, int] | None]:
    """The ids as a list of ints; and the smallest and largest of them, where they were such already."""
    items = token_ids.tolist() if isinstance(token_ids, np.ndarray) else token_ids
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise UserError(f"prompt_token_ids is {_show(token_ids)}; give a list of token ids")
    items = list(items)
    if ends := bounds_of_plain(items):
        return items, ends
    for item in items:
        if not isinstance(item, (int, np.integer)) or isinstance(item, bool):
            raise UserError(f"prompt_token_ids holds {_show(item)}; give whole numbers")
    return [int(item) for item in items], None


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."
