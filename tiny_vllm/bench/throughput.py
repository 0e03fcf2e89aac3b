"""All requests of a workload at once, and what came of it beside the floor that no engine can beat."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from tiny_vllm.bench.workload import Workload, uniform


@dataclass(frozen=True)
class Result:
    """One run. floor_seconds: to read every weight once a step at the machine's bandwidth, and nothing else."""

    seconds: float
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_steps: int
    num_preemptions: int
    weight_bytes: int
    bandwidth: float

    @property
    def output_tokens_per_second(self) -> float:
        return self.num_output_tokens / self.seconds

    @property
    def total_tokens_per_second(self) -> float:
        return (self.num_prompt_tokens + self.num_output_tokens) / self.seconds

    @property
    def floor_seconds(self) -> float:
        return self.num_steps * self.weight_bytes / self.bandwidth

    def as_dict(self) -> dict[str, float | int]:
        """For JSON."""
        rates = ("output_tokens_per_second", "total_tokens_per_second", "floor_seconds")
        return {**asdict(self), **{name: getattr(self, name) for name in rates}}

    def __str__(self) -> str:
        """For a terminal."""
        return (
            f"{self.num_requests} requests, {self.num_prompt_tokens:,} tokens in, {self.num_output_tokens:,} out "
            f"in {self.seconds:.2f} s\n"
            f"{self.output_tokens_per_second:,.0f} output tokens/s, {self.total_tokens_per_second:,.0f} in all\n"
            f"{self.num_steps:,} steps, {self.num_preemptions} preemptions, "
            f"{self.seconds / max(self.num_steps, 1) * 1e3:.2f} ms a step\n"
            f"reading the weights alone, {self.weight_bytes / 1e9:.3g} GB a step at {self.bandwidth / 1e9:.3g} GB/s, "
            f"takes {self.floor_seconds:.2f} s: {self.floor_seconds / self.seconds:.0%} of the time"
        )


def throughput(llm: Any, workload: Workload, warm_up: bool = True) -> Result:
    """All requests at once, from the first step to the last; llm: an LLM.

    warm_up: compile the kernels and capture the graphs before, with prompts that the workload does not have.
    """
    bandwidth = llm.device.bandwidth()
    if warm_up:
        few = uniform(min(len(workload.prompts), 8), 64, 8, top_id=1, seed=1)
        llm.generate([{"prompt_token_ids": prompt} for prompt in few.prompts], few.params(), use_tqdm=False)
        llm.warm_up()
    before, start = llm.stats(), time.perf_counter()
    prompts = [{"prompt_token_ids": prompt} for prompt in workload.prompts]
    outputs = llm.generate(prompts, workload.params(), use_tqdm=None)
    seconds, after = time.perf_counter() - start, llm.stats()
    return Result(
        seconds=seconds,
        num_requests=len(outputs),
        num_prompt_tokens=workload.num_prompt_tokens,
        num_output_tokens=sum(len(output.outputs[0].token_ids) for output in outputs),
        num_steps=after.num_steps - before.num_steps,
        num_preemptions=after.num_preemptions - before.num_preemptions,
        weight_bytes=llm.weight_bytes,
        bandwidth=bandwidth,
    )
