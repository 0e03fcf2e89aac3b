"""A real engine under random load; every answer is compared with the oracle, which knows one request and no cache."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tiny_vllm.engine.engine_args import EngineArgs
from tiny_vllm.engine.llm_engine import LLMEngine
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.models.weights import LlamaWeights, load_weights
from tiny_vllm.ops import make_ops
from tiny_vllm.reference.llama import Oracle
from tiny_vllm.types import RequestOutput, SamplingParams

DATA = Path(__file__).parents[1] / "data" / "tiny"
MARGIN = 1e-3  # of float32 logits: a smaller lead of the best token may be lost to another order of additions
POISON = 1e3  # in blocks that nobody has written yet; not NaN, since a tensor core multiplies what lies behind the end


@cache
def oracle(name: str) -> Oracle:
    return Oracle(DATA / name)


@cache
def checkpoint(name: str, device: Any) -> tuple[ModelConfig, LlamaWeights, Tokenizer]:
    config = ModelConfig.from_folder(DATA / name)
    return config, load_weights(DATA / name, config, device, np.float32), Tokenizer.from_folder(DATA / name)


def make_engine(device: Any, name: str = "tiny", eos: tuple[int, ...] = (), ops: Any = None, **args: Any) -> LLMEngine:
    """An engine over a tiny checkpoint in float32. eos: in place of the checkpoint's."""
    config, weights, tokenizer = checkpoint(name, device)
    config = dataclasses.replace(config, eos_token_ids=eos)
    ops = ops or make_ops("tuned", device, config, np.float32)
    engine = EngineArgs(**{"enforce_eager": False, **args}).make_engine(device, config, weights, ops, tokenizer)
    for layer in engine.check_open().runner.cache.layers:
        layer.fill(POISON)
    return engine


def check_pool(engine: LLMEngine) -> None:
    """Free + cached + owned = all, and every owner counted."""
    parts: Any = engine.check_open()
    parts.pool.check([request.block_ids for request in parts.scheduler.running.values()])


def near_ties(name: str, prompt: list[int], answer: list[int]) -> int:
    """How many tokens are not the oracle's best one; each of them must be within MARGIN of it."""
    logits = oracle(name).logits((prompt + answer)[:-1])[len(prompt) - 1 :]
    behind = logits.max(axis=-1) - logits[np.arange(len(answer)), answer]
    assert (behind < MARGIN).all(), f"token {int((behind >= MARGIN).argmax())} of the answer is wrong by {behind.max()}"
    return int((logits.argmax(axis=-1) != answer).sum())


@dataclass
class Setting:
    """One engine: its limits, its loop, its cache."""

    name: str
    block_size: int
    num_gpu_blocks_override: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_prefix_caching: bool
    async_scheduling: bool
    enforce_eager: bool

    @staticmethod
    def draw(rng: random.Random, name: str) -> Setting:
        """One pool in two is the smallest that holds the longest request, or little more: it forces preemption."""
        size = rng.choice([1, 8, 16, 16, 32])
        length = rng.choice([2 * size + 10, 5 * size + 24, rng.randrange(60, 160)])
        smallest = -(-(length - 1) // size)
        return Setting(
            name,
            size,
            smallest + rng.choice([0, 1, smallest // 2, rng.randrange(2 * smallest + 1), 8 * smallest]),
            rng.choice([1, 2, 3, 5, 9, 17]),
            rng.choice([1, 7, size, size + 1, 64, 256]),
            length,
            rng.random() < 0.6,
            rng.random() < 0.5,
            rng.random() < 0.4,
        )

    def args(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "name"}


@dataclass
class Load:
    """Requests of mixed lengths that come, and are aborted, at random steps."""

    engine: LLMEngine
    setting: Setting
    eos: tuple[int, ...]
    rng: random.Random
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.vocab = self.engine.maker.vocab_size
        length = self.setting.max_model_len
        self.prefixes = [[self.rng.randrange(self.vocab) for _ in range(length)] for _ in range(3)]
        self.open: dict[str, tuple[list[int], SamplingParams]] = {}
        self.last: dict[str, RequestOutput] = {}

    def arrive(self, request_id: str) -> None:
        """Lengths around the block boundaries; half of the prompts begin like another one."""
        size, longest = self.setting.block_size, self.setting.max_model_len - 1
        lengths = [1, 2, size - 1, size, size + 1, 2 * size, 5 * size + 3, longest, self.rng.randrange(1, longest + 1)]
        length = min(max(self.rng.choice(lengths), 1), longest if self.rng.random() < 0.4 else longest // 3)
        shared = self.rng.choice(self.prefixes)[: self.rng.choice([0, length, self.rng.randrange(length + 1)])]
        prompt = (shared + [self.rng.randrange(self.vocab) for _ in range(length)])[:length]
        max_tokens = self.rng.choice([1, 9, 30, 90, self.rng.randrange(1, 90)])
        params = SamplingParams(0.0, max_tokens, ignore_eos=self.rng.random() < 0.5)
        self.engine.add_request(request_id, {"prompt_token_ids": prompt}, params)
        self.open[request_id] = prompt, params

    def step(self) -> None:
        for output in self.engine.step():
            assert output.request_id in self.open, "an output of a request that has ended"
            self.last[output.request_id] = output
            if output.finished:
                self.compare(output, *self.open.pop(output.request_id))
        check_pool(self.engine)

    def compare(self, output: RequestOutput, prompt: list[int], params: SamplingParams) -> None:
        """Every token, the end and its reason are those of a lone run."""
        [answer] = output.outputs
        ids, stops = answer.token_ids, set() if params.ignore_eos else set(self.eos)
        self.seen["near ties"] += near_ties(self.setting.name, prompt, ids)
        self.seen["tokens"] += len(ids)
        room = min(params.max_tokens, self.setting.max_model_len - len(prompt))
        assert not stops & set(ids[:-1]) and len(ids) <= room
        assert answer.finish_reason == ("stop" if ids[-1] in stops else "length")
        assert answer.finish_reason == "stop" or len(ids) == room
        self.seen[str(answer.finish_reason)] += 1
        self.seen["requests"] += 1

    def abort(self) -> None:
        """Abort any request, at whatever it is; what it had said was right."""
        request_id = self.rng.choice([*self.open, "nobody"])
        self.engine.abort_request(request_id)
        if request_id in self.open:
            prompt, _ = self.open.pop(request_id)
            self.seen["aborted"] += 1
            if request_id in self.last:
                near_ties(self.setting.name, prompt, self.last[request_id].outputs[0].token_ids)

    def run(self, num_requests: int) -> Counter[str]:
        arrivals, aborts = self.rng.choice([0.1, 0.4, 0.9]), self.rng.choice([0.0, 0.03])
        numbers = iter(range(num_requests))
        more = True
        while more or self.open:
            while more and self.rng.random() < arrivals and len(self.open) < 24:
                number = next(numbers, None)
                more = number is not None
                if more:
                    self.arrive(str(number))
            if self.rng.random() < aborts:
                self.abort()
            self.step()
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
        self.seen["preemptions"] += stats.num_preemptions
        self.seen["hits"] += stats.prefix_hit_rate > 0
        self.seen["graphs"] += self.engine.check_open().runner.graphs.num_captured
        return self.seen


def run_load(device: Any, name: str, seed: int, num_requests: int, setting: Setting | None = None) -> Counter[str]:
    """One engine of random settings under random load."""
    rng = random.Random(f"{name} {seed}")
    setting = setting or Setting.draw(rng, name)
    vocab = checkpoint(name, device)[0].vocab_size
    eos = tuple(rng.sample(range(vocab), vocab // 40))  # an answer ends after some 40 tokens, if nothing else ends it
    engine = make_engine(device, name, eos, **setting.args())
    try:
        return Load(engine, setting, eos, rng).run(num_requests)
    finally:
        engine.close()
