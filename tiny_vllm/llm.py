"""LLM: a model ready to answer, under vLLM's names.

with LLM("smollm2-135m") as llm:
    print(llm.generate("1, 2, 3,", SamplingParams(temperature=0))[0].outputs[0].text)
"""

from __future__ import annotations

import gc
import itertools
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tiny_vllm.device.base import Device
from tiny_vllm.engine.engine_args import EngineArgs
from tiny_vllm.engine.inputs import as_conversations, as_list, pair_params
from tiny_vllm.engine.llm_engine import EngineStats, LLMEngine
from tiny_vllm.engine.progress import progress_bar
from tiny_vllm.engine.settings import OpsFactory, check_choices, choose_ops, resolve_device, resolve_length, resolve_ops
from tiny_vllm.engine.shared_engine import SharedEngine
from tiny_vllm.errors import UserError
from tiny_vllm.models.chat_template import Messages
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.dtype import resolve_dtype
from tiny_vllm.models.hub import resolve_model
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.models.weights import load_weights, weight_bytes
from tiny_vllm.ops.base import Ops
from tiny_vllm.types import RequestOutput, Sampler, SamplingParams

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A model on a device.

    model: a folder, a Hugging Face hub id, or "smollm2-135m", which needs no account.
    dtype: "auto" (float32 on the emulator; on a GPU the checkpoint's, and float16 below compute capability 8.0),
        "bfloat16", "float16" or "float32".
    device: "auto" (a GPU if there is one), "cuda" or "emulator".
    ops: "tuned" (default), "reference", an Ops object, or a callable (device, config, dtype) -> Ops such as a class.

    The rest are the engine's settings:
    max_model_len: prompt and answer together; default the checkpoint's own limit.
    max_num_seqs: requests that run at once, default 256 and on the emulator 16.
    max_num_batched_tokens: tokens a step computes, over all requests, default 8192 and on the emulator 2048; a longer
        prompt comes in chunks.
    block_size: tokens in a block of the KV cache.
    gpu_memory_utilization: the part of the GPU's memory that may be full once the KV cache is allocated. On the
        emulator the cache takes a quarter of the free memory, 1 GiB at most. A max_model_len whose cache does not fit
        is refused, and the error names the largest that does.
    num_gpu_blocks_override: so many blocks instead. A request that needs more is refused when it comes.
    enable_prefix_caching: requests that begin alike share the blocks of their common beginning.
    enforce_eager: launch each decode step anew, instead of replaying it as a CUDA graph; default on the emulator.
    async_scheduling: plan each step while the one before runs; default on a GPU, unless `scheduler` is given. The
        answers are the same.
    scheduler, block_pool: what stands in for the engine's own: callables with the signatures of Scheduler and
        PrefixCachingBlockPool, that make what the protocols of types.py say. sampler: an object, likewise.
    batch_invariant: a request's logits have the same bits alone, in any batch, in any chunks; slower, and `ops` is left
        out (docs/batch_invariance.md).

    UserError names what is wrong with any of these. A context manager: close() gives the memory back. Threads may share
    an LLM.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "auto",
        device: str = "auto",
        ops: str | Ops | OpsFactory | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        block_size: int = 16,
        gpu_memory_utilization: float = 0.9,
        num_gpu_blocks_override: int | None = None,
        enable_prefix_caching: bool = True,
        enforce_eager: bool | None = None,
        async_scheduling: bool | None = None,
        scheduler: Callable[..., Any] | None = None,
        block_pool: Callable[..., Any] | None = None,
        sampler: Sampler | None = None,
        batch_invariant: bool = False,
    ) -> None:
        args = EngineArgs(
            max_model_len,
            max_num_seqs,
            max_num_batched_tokens,
            block_size,
            num_gpu_blocks_override,
            enable_prefix_caching,
            gpu_memory_utilization,
            enforce_eager,
            async_scheduling,
            scheduler,
            block_pool,
            sampler,
        )
        check_choices(dtype, ops)
        ops = choose_ops(ops, batch_invariant)
        self.device = resolve_device(device, ops)
        folder = resolve_model(model)
        self.model = str(model)
        self.config = ModelConfig.from_folder(folder)
        self.dtype = resolve_dtype(dtype, self.config, self.device)
        self.max_model_len = resolve_length(max_model_len, self.config)
        self._ids = map(str, itertools.count())
        self._tokenizer = Tokenizer.from_folder(folder)
        try:
            self._engine = self._load(folder, ops, args)
            self._shared = SharedEngine(self._engine)
        except (UserError, MemoryError) as error:
            traceback.clear_frames(error.__traceback__)  # a notebook keeps the traceback, and so would keep the weights
            _give_back(self.device)
            raise

    def _load(self, folder: Path, ops: str | Ops | OpsFactory | None, args: EngineArgs) -> LLMEngine:
        operations = resolve_ops(ops, self.device, self.config, self.dtype)
        weights = load_weights(folder, self.config, self.device, self.dtype)
        self.weight_bytes = weight_bytes(weights)
        return args.make_engine(self.device, self.config, weights, operations, self._tokenizer)

    @property
    def async_scheduling(self) -> bool:
        """Whether a step is planned while the one before runs."""
        return self._engine.async_scheduling

    def generate(
        self, prompts: Any, sampling_params: Params = None, use_tqdm: bool | None = None
    ) -> list[RequestOutput]:
        """Answers, in the order of the prompts, which are computed together.

        prompts: a text, {"prompt": text}, {"prompt_token_ids": ids}, or a list of these. sampling_params: one for all,
        or one for each. Every prompt is checked before the first one runs. use_tqdm: show a progress bar; None: for
        several prompts on a terminal.
        """
        self._engine.check_open()
        items = as_list(prompts)
        params = pair_params(len(items), sampling_params)
        requests = [self._engine.make_request(next(self._ids), *each) for each in zip(items, params, strict=True)]
        with progress_bar(len(requests), use_tqdm) as advance:
            return self._shared.collect(requests, advance)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params = None,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Answers to one conversation, [{"role": "user", "content": text}, ...], or to a list of conversations."""
        prompts = [self.chat_prompt(conversation) for conversation in as_conversations(messages)]
        return self.generate(prompts, sampling_params, use_tqdm)

    def chat_prompt(self, conversation: Messages) -> dict[str, Any]:
        """A conversation as a prompt for generate or stream: by the model's chat template, the answer opened."""
        self._engine.check_open()
        text = self._tokenizer.apply_chat_template(conversation)
        # The template spells out its special tokens: adding a BOS again would give two
        return {"prompt": text, "prompt_token_ids": self._tokenizer.encode(text, add_special_tokens=False)}

    def stream(self, prompt: Any, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """One prompt's answer as it grows, after each new token; mistakes are raised here, before the first one.

        Several streams may be read in turn: they are computed together.
        """
        self._engine.check_open()
        [params] = pair_params(1, sampling_params)
        return self._shared.stream(self._engine.make_request(next(self._ids), prompt, params))

    def warm_up(self) -> None:
        """Capture all CUDA graphs, and load what a long prompt needs, now.

        Otherwise each graph is captured when a batch of its size comes a second time.
        """
        self._shared.warm_up()

    def stats(self) -> EngineStats:
        """Requests, blocks and tokens, of this moment and since the start."""
        return self._shared.stats()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        self._engine.check_open()
        return self._tokenizer

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        if not self._engine.closed:
            self._shared.close()
            _give_back(self.device)

    def __enter__(self) -> LLM:
        self._engine.check_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _give_back(device: Device) -> None:
    gc.collect()  # an Ops holds its own bound methods, a cycle that only the collector frees
    device.close()
