"""Workloads to measure an engine with: prompts of token ids, and how long each answer is to be."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tiny_vllm.sampling_params import SamplingParams

TOP_ID = 10_000  # of a prompt's token ids


@dataclass(frozen=True)
class Workload:
    """Prompts of token ids, and how many tokens each is to be answered with."""

    prompts: list[list[int]]
    output_lens: list[int]
    temperature: float = 0.6

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        return sum(self.output_lens)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and its answer together."""
        return max(len(prompt) + length for prompt, length in zip(self.prompts, self.output_lens))

    def params(self) -> list[SamplingParams]:
        """Answers of exactly the wanted lengths, without text; request i draws with seed i."""
        return [
            SamplingParams(self.temperature, length, ignore_eos=True, detokenize=False, seed=index)
            for index, length in enumerate(self.output_lens)
        ]


def nano_vllm(num_prompts: int = 256, top_id: int = TOP_ID, seed: int = 0) -> Workload:
    """The workload of nano-vllm's bench.py, number for number: 142,827 tokens in and 133,966 out at 256 prompts.

    Lengths uniform from 100 to 1,024, token ids from 0 to 10,000, all prompts drawn before the lengths of the answers.
    top_id: lower for a smaller vocabulary, which gives other numbers.
    """
    rng = random.Random(seed)
    prompts = [[rng.randint(0, top_id) for _ in range(rng.randint(100, 1024))] for _ in range(num_prompts)]
    return Workload(prompts, [rng.randint(100, 1024) for _ in range(num_prompts)])


def uniform(num_prompts: int, input_len: int, output_len: int, top_id: int = TOP_ID, seed: int = 0) -> Workload:
    """Prompts and answers of one length each."""
    rng = random.Random(seed)
    prompts = [[rng.randint(0, top_id) for _ in range(input_len)] for _ in range(num_prompts)]
    return Workload(prompts, [output_len] * num_prompts)
