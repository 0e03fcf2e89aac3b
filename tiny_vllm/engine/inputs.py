"""From what a caller gives, a text or token ids, to a Request: every mistake is met here, before anything runs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiny_vllm.errors import UserError
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
        text, token_ids = self._tokenize(prompt)
        self._check_length(len(token_ids))
        self._check_ids(token_ids)
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(64))
        return Request(request_id, token_ids, params, text)

    def _tokenize(self, prompt: Any) -> tuple[str | None, list[int]]:
        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        if isinstance(prompt, dict) and "prompt_token_ids" in prompt:
            token_ids = _plain_ids(prompt["prompt_token_ids"])
            if not token_ids:
                raise UserError("prompt_token_ids is empty; give at least one token id")
            return text, token_ids
        if not isinstance(text, str):
            raise UserError(f"a prompt is {_show(prompt)}; give {FORMS}")
        token_ids = self.tokenizer.encode(text)
        if not token_ids:
            raise UserError(f"the prompt {text!r} has no tokens and this tokenizer adds no BOS token; give some text")
        return text, token_ids

    def _check_length(self, count: int) -> None:
        if count >= self.max_model_len:
            raise UserError(
                f"the prompt has {count} tokens and max_model_len is {self.max_model_len}, which leaves room for "
                f"{self.max_model_len - 1} of them and one new token; shorten the prompt or raise max_model_len"
            )

    def _check_ids(self, token_ids: list[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise UserError(f"token id {token_id} is not in the vocabulary; ids go from 0 to {self.vocab_size - 1}")


def _plain_ids(token_ids: Any) -> list[int]:
    items = token_ids.tolist() if isinstance(token_ids, np.ndarray) else token_ids
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise UserError(f"prompt_token_ids is {_show(token_ids)}; give a list of token ids")
    for item in items:
        if not isinstance(item, (int, np.integer)) or isinstance(item, bool):
            raise UserError(f"prompt_token_ids holds {_show(item)}; give whole numbers")
    return [int(item) for item in items]


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."
