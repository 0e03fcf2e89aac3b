"""The engine's settings under vLLM's names, and the engine that they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiny_vllm.device.base import Device
from tiny_vllm.engine.block_pool import PrefixCachingBlockPool
from tiny_vllm.engine.draws import Drawer
from tiny_vllm.engine.inputs import RequestMaker
from tiny_vllm.engine.kv_cache import BLOCK_SIZE, CacheSize
from tiny_vllm.engine.llm_engine import LLMEngine
from tiny_vllm.engine.memory_check import check_memory
from tiny_vllm.engine.parts import Parts
from tiny_vllm.engine.runner import Runner
from tiny_vllm.engine.sampler import TokenSampler
from tiny_vllm.engine.scheduler import Scheduler
from tiny_vllm.engine.settings import resolve_length
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.models.weights import LlamaWeights
from tiny_vllm.ops.base import Ops
from tiny_vllm.sampling_params import plain_number
from tiny_vllm.types import Sampler

# On the emulator a step of 16 requests already takes a second for a real model; a GPU is hardly busy with them.
MAX_NUM_SEQS = {"emulator": 16, "cuda": 256}
MAX_NUM_BATCHED_TOKENS = {"emulator": 2048, "cuda": 8192}


@dataclass(frozen=True)
class EngineArgs:
    """Settings of LLM that the engine is made by; LLM tells what each means. None: as suits the device."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = BLOCK_SIZE
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool | None = None
    async_scheduling: bool | None = None
    scheduler: Callable[..., Any] | None = None
    block_pool: Callable[..., Any] | None = None
    sampler: Any = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, plain_number(value))
        for name in ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks_override"):
            _check_count(name, getattr(self, name), optional=True)
        _check_count("block_size", self.block_size)
        share = self.gpu_memory_utilization
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise UserError(f"gpu_memory_utilization is {share!r}; give a number above 0, and at most 1")
        _check_flag("enable_prefix_caching", self.enable_prefix_caching)
        for name in ("enforce_eager", "async_scheduling"):
            _check_flag(name, getattr(self, name), optional=True)
        for name in ("scheduler", "block_pool"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise UserError(f"{name} is {getattr(self, name)!r}; give a class or a function that makes one")
        if self.sampler is not None and not callable(getattr(self.sampler, "sample", None)):
            raise UserError(f"sampler is {self.sampler!r}; give an object with sample(logits, requests)")

    def make_engine(
        self, device: Device, config: ModelConfig, weights: LlamaWeights, ops: Ops, tokenizer: Tokenizer
    ) -> LLMEngine:
        """The engine; UserError where the cache does not fit."""
        max_model_len = resolve_length(self.max_model_len, config)
        max_num_seqs = self.max_num_seqs or MAX_NUM_SEQS[device.name]
        budget = self.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS[device.name]
        budget = min(budget, max_num_seqs * (max_model_len - 1))  # more can never come in a step
        size = CacheSize(
            self.block_size, max_model_len, max_num_seqs, self.gpu_memory_utilization, self.num_gpu_blocks_override
        )
        check_memory(device, config, ops.dtype, size, budget)
        # Before the cache, which is measured by what is left
        sampler = self._make_sampler(device, config, max_model_len, max_num_seqs)
        # On the emulator a graph saves little, and a lesson's NumPy operations cannot be captured
        eager = device.name == "emulator" if self.enforce_eager is None else self.enforce_eager
        runner = Runner(device, config, weights, ops, size, budget, eager)
        pool = (self.block_pool or PrefixCachingBlockPool)(
            runner.cache.num_blocks, self.block_size, self.enable_prefix_caching
        )
        _check_made("block_pool", pool, ("block_size", "num_free", "allocate", "free"))
        scheduler = (self.scheduler or Scheduler)(
            pool,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=max_model_len,
            eos_token_ids=config.eos_token_ids,
        )
        _check_made("scheduler", scheduler, ("add", "abort", "schedule", "update"))
        maker = RequestMaker(tokenizer, config.vocab_size, max_model_len)
        # A student's scheduler may know nothing of tokens in flight
        usual = device.name == "cuda" and self.scheduler is None
        overlapped = usual if self.async_scheduling is None else self.async_scheduling
        parts = Parts(runner, scheduler, pool, Drawer(runner, sampler, tokenizer))
        return LLMEngine(parts, tokenizer, maker, config.eos_token_ids, overlapped)

    def _make_sampler(self, device: Device, config: ModelConfig, max_model_len: int, num_rows: int) -> Sampler:
        if self.sampler is None:
            return TokenSampler(device, config.vocab_size, max_model_len, num_rows, config.eos_token_ids)
        return self.sampler() if isinstance(self.sampler, type) else self.sampler


def _check_made(name: str, made: Any, needed: tuple[str, ...]) -> None:
    missing = ", ".join(each for each in needed if not hasattr(made, each))
    if missing:
        raise UserError(f"{name} made {made!r:.60}, which lacks {missing}; the protocols of types.py say what it needs")


def _check_count(name: str, value: Any, optional: bool = False) -> None:
    if not (optional and value is None) and (type(value) is not int or value < 1):
        raise UserError(f"{name} is {value!r}; give a whole number of at least 1")


def _check_flag(name: str, value: Any, optional: bool = False) -> None:
    if not isinstance(value, bool) and not (optional and value is None):
        raise UserError(f"{name} is {value!r}; give {'True, False or None' if optional else 'True or False'}")
