"""LLM: a model ready to answer, under vLLM's names.

with LLM("smollm2-135m") as llm:
    print(llm.generate("1, 2, 3,", SamplingParams(temperature=0))[0].outputs[0].text)
"""

from __future__ import annotations

import gc
import itertools
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tiny_vllm.device.base import Device
from tiny_vllm.engine.core import Engine
from tiny_vllm.engine.inputs import RequestMaker, as_list, pair_params
from tiny_vllm.engine.runner import Runner
from tiny_vllm.engine.sampler import TokenSampler
from tiny_vllm.engine.settings import (
    OpsFactory,
    check_choices,
    resolve_device,
    resolve_length,
    resolve_ops,
)
from tiny_vllm.errors import UserError
from tiny_vllm.models.chat_template import Messages
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.dtype import resolve_dtype
from tiny_vllm.models.hub import resolve_model
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.models.weights import load_weights, weight_bytes
from tiny_vllm.ops.base import Ops
from tiny_vllm.types import RequestOutput, SamplingParams


class LLM:
    """A model on a device.

    model: a folder, a Hugging Face hub id, or "smollm2-135m", which needs no account.
    dtype: "auto" (float32 on the emulator; on a GPU the checkpoint's, and float16 below compute capability 8.0),
        "bfloat16", "float16" or "float32".
    device: "auto" (a GPU if there is one), "cuda" or "emulator".
    max_model_len: prompt and answer together; default the checkpoint's own limit. Its KV cache is allocated at once;
        one that does not fit is refused, and the error names the largest length that does.
    max_num_batched_tokens: a longer prompt is computed in chunks of so many tokens.
    ops: "tuned" (default), "reference", an Ops object, or a callable (device, config, dtype) -> Ops such as a class.

    UserError names what is wrong with any of these. A context manager: close() gives the memory back.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "auto",
        device: str = "auto",
        max_model_len: int | None = None,
        max_num_batched_tokens: int = 2048,
        ops: str | Ops | OpsFactory | None = None,
    ) -> None:
        check_choices(dtype, ops, max_num_batched_tokens)
        self.device = resolve_device(device, ops)
        folder = resolve_model(model)
        self.model = str(model)
        self.config = ModelConfig.from_folder(folder)
        self.dtype = resolve_dtype(dtype, self.config, self.device)
        self.max_model_len = resolve_length(max_model_len, self.config)
        self._request_ids = itertools.count()
        self._tokenizer = Tokenizer.from_folder(folder)
        try:
            runner = self._load(folder, ops, max_num_batched_tokens)
        except (UserError, MemoryError) as error:
            traceback.clear_frames(error.__traceback__)  # a notebook keeps the traceback, and so would keep the weights
            _give_back(self.device)
            raise
        self.weight_bytes = weight_bytes(runner.model.weights)
        sampler = TokenSampler(self.device)
        self._engine = Engine(runner, sampler, self._tokenizer, self.config.eos_token_ids, self.max_model_len)

    def _load(self, folder: Path, ops: str | Ops | OpsFactory | None, max_num_batched_tokens: int) -> Runner:
        operations = resolve_ops(ops, self.device, self.config, self.dtype)
        weights = load_weights(folder, self.config, self.device, self.dtype)
        return Runner(self.device, self.config, weights, operations, self.max_model_len, max_num_batched_tokens)

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Answers, in the order of the prompts.

        prompts: a text, {"prompt": text}, {"prompt_token_ids": ids}, or a list of these. sampling_params: one for all,
        or one for each. Every prompt is checked before the first one runs. use_tqdm: show a progress bar.
        """
        self._engine.check_open()
        items = as_list(prompts)
        maker, params = self._maker(), pair_params(len(items), sampling_params)
        requests = [maker.make(self._next_id(), item, each) for item, each in zip(items, params, strict=True)]
        return [_last(self._engine.generate_stream(request)) for request in _progress(requests, use_tqdm)]

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Answers to one conversation, [{"role": "user", "content": text}, ...], or to a list of conversations."""
        prompts = [self.chat_prompt(conversation) for conversation in _conversations(messages)]
        return self.generate(prompts, sampling_params, use_tqdm)

    def chat_prompt(self, conversation: Messages) -> dict[str, Any]:
        """A conversation as a prompt for generate or stream: by the model's chat template, the answer opened."""
        self._engine.check_open()
        text = self._tokenizer.apply_chat_template(list(conversation))
        # The template spells out its special tokens: adding a BOS again would give two
        return {"prompt": text, "prompt_token_ids": self._tokenizer.encode(text, add_special_tokens=False)}

    def stream(self, prompt: Any, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """One prompt's answer as it grows, after each new token; mistakes are raised here, before the first one."""
        self._engine.check_open()
        [params] = pair_params(1, sampling_params)
        return self._engine.generate_stream(self._maker().make(self._next_id(), prompt, params))

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        self._engine.check_open()
        return self._tokenizer

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        if not self._engine.closed:
            self._engine.close()
            _give_back(self.device)

    def __enter__(self) -> LLM:
        self._engine.check_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _maker(self) -> RequestMaker:
        return RequestMaker(self._tokenizer, self.config.vocab_size, self.max_model_len)

    def _next_id(self) -> str:
        return str(next(self._request_ids))


def _give_back(device: Device) -> None:
    gc.collect()  # an Ops holds its own bound methods, a cycle that only the collector frees
    device.close()


def _conversations(messages: Any) -> list[Messages]:
    """One conversation or several -> a list of them."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise UserError(f'messages is {messages!r}; give [{{"role": "user", "content": text}}, ...]')
    return [messages] if isinstance(messages[0], dict) else list(messages)


def _progress(requests: list[Any], shown: bool) -> Any:
    if not shown:
        return requests
    from tqdm import tqdm

    return tqdm(requests, desc="prompts")


def _last(stream: Iterator[RequestOutput]) -> RequestOutput:
    return deque(stream, maxlen=1).pop()
