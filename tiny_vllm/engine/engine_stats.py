"""What the engine and its scheduler can say about themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiny_vllm.types import Request


@dataclass(frozen=True)
class SchedulerStats:
    """Requests and blocks at this moment; prefix tokens and preemptions since the start."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_used_blocks: int  # owned by requests; a block that only caches a prefix is free
    prefix_queries: int  # tokens of the requests admitted so far ...
    prefix_hits: int  # ... and those of them found in the prefix cache; a preempted request's return counts in neither
    num_preemptions: int

    @property
    def prefix_hit_rate(self) -> float:
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else 0.0


@dataclass(frozen=True)
class Counted:
    """Counts since the engine's start. num_graphs: sizes of decode step captured; seconds: spent in steps."""

    num_steps: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_graphs: int
    seconds: float


@dataclass(frozen=True)
class EngineStats(Counted):
    """Requests and blocks at this moment, counts since the start."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_used_blocks: int
    prefix_hit_rate: float
    num_preemptions: int

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second of steps."""
        return self.num_generated_tokens / self.seconds if self.seconds else 0.0


def engine_stats(
    scheduler: Any, num_blocks: int, num_free: int, requests: list[Request], counted: Counted
) -> EngineStats:
    """requests: all that are unfinished; what a scheduler does not say itself is counted from them."""
    running = sum(bool(request.block_ids) for request in requests)
    known = scheduler.stats() if hasattr(scheduler, "stats") else None
    return EngineStats(
        **vars(counted),
        num_running=known.num_running if known else running,
        num_waiting=known.num_waiting if known else len(requests) - running,
        num_blocks=num_blocks,
        num_used_blocks=num_blocks - num_free,
        prefix_hit_rate=known.prefix_hit_rate if known else 0.0,
        num_preemptions=known.num_preemptions if known else sum(request.num_preemptions for request in requests),
    )
