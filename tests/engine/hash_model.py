"""A model that is a hash: what it says depends on every token before, in order.

Its cache is a real one: a slot holds the hash of all tokens up to its own, and a step reads the slots of its context
through the block table that it was told. So a block that is shared, evicted or given away wrongly is seen when it is
read, and a request that was cut short or preempted wrongly ends in other words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tiny_vllm.engine.block_pool import PrefixCachingBlockPool
from tiny_vllm.engine.scheduler import Scheduler
from tiny_vllm.types import IN_FLIGHT, Request, ScheduledRequest, StepPlan

VOCAB, EOS, STOP = 40, 0, 1
MODULUS = 2**61 - 1


def mix(before: int, token_id: int) -> int:
    """The hash of a prefix from that of the prefix before it."""
    return (before * 6364136223846793005 + token_id + 1) % MODULUS


def next_token(state: int) -> int:
    return state // 977 % VOCAB


def hashes(token_ids: list[int]) -> list[int]:
    """What the slots of a request hold."""
    states = [1]
    for token_id in token_ids:
        states.append(mix(states[-1], token_id))
    return states[1:]


def lone_run(request: Request, max_model_len: int) -> tuple[list[int], str]:
    """The answer and its end, from the definitions alone."""
    state, output = hashes(request.prompt_token_ids)[-1], []
    while True:
        output.append(next_token(state))
        if (output[-1] == EOS and not request.params.ignore_eos) or output[-1] in request.stop_token_ids:
            return output, "stop"
        full = len(request.prompt_token_ids) + len(output) == max_model_len
        if full or len(output) == request.params.max_tokens:
            return output, "length"
        state = mix(state, output[-1])


class HashModel:
    """A device that runs the plans one after another, and knows of them only what they say."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.cache = [[-1] * block_size for _ in range(num_blocks)]
        self.tables: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}  # as the device saw them
        self.drawn: dict[str, int] = {}  # by the step before

    def run(self, plan: StepPlan) -> dict[str, int]:
        """The tokens drawn by a step."""
        drawn = {}
        for part in plan.requests:
            state = self._run(part)
            if part.is_sampled:
                drawn[part.request_id] = next_token(state)
        self.drawn = drawn
        return drawn

    def _run(self, part: ScheduledRequest) -> int:
        if part.first_new_block == 0 and part.new_block_ids:
            self.tables[part.request_id] = []
        table = self.tables[part.request_id]
        assert part.first_new_block == len(table), "new blocks go to the end of the table"
        table.extend(part.new_block_ids)
        token_ids = [self.drawn[part.request_id] if token == IN_FLIGHT else token for token in part.token_ids]
        context = [state for block in table for state in self.cache[block]][: part.start]
        assert len(context) == part.start, "the table is too short"
        state = context[-1] if context else 1
        for position, token_id in enumerate(token_ids, part.start):
            state = mix(state, token_id)
            self.cache[table[position // self.size]][position % self.size] = state
        return state

    def context(self, part: ScheduledRequest) -> list[int]:
        """What the step of this part reads, its own tokens included."""
        table = self.tables[part.request_id]
        return [state for block in table for state in self.cache[block]][: part.end]


class PlainPool:
    """A pool without prefixes, as a student's may be."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size, self.blocks = num_blocks, block_size, list(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self.blocks)

    def allocate(self, count: int) -> list[int]:
        taken, self.blocks = self.blocks[:count], self.blocks[count:]
        return taken

    def free(self, blocks: list[int]) -> None:
        self.blocks += blocks

    def check(self, owned: list[list[int]]) -> None:
        assert sorted(self.blocks + [block for blocks in owned for block in blocks]) == list(range(self.num_blocks))


class Loop:
    """The plain or the overlapped loop over a HashModel; keeps the plans."""

    def __init__(self, scheduler: Scheduler, overlapped: bool = False) -> None:
        self.scheduler, self.overlapped = scheduler, overlapped
        self.model = HashModel(scheduler.limits.num_blocks, scheduler.limits.block_size)
        self.in_flight: deque[tuple[StepPlan, dict[str, int]]] = deque()
        self.plans: list[StepPlan] = []
        self.ended: list[str] = []  # in the order of their ends

    def step(self) -> StepPlan:
        """One step; each request must read its own keys."""
        plan = self.scheduler.schedule()
        requests = {**self.scheduler.running}
        drawn = self.model.run(plan)
        for part in plan.requests:
            known = requests[part.request_id].token_ids[: part.end]
            assert self.model.context(part)[: len(known)] == hashes(known), "another request's keys"
        if plan.requests:
            self.plans.append(plan)
            self.in_flight.append((plan, drawn))
        if self.in_flight and (len(self.in_flight) > self.overlapped or not plan.requests):
            updated = self.scheduler.update(*self.in_flight.popleft())
            self.ended += [request.request_id for request in updated if request.finish_reason]
        if isinstance(self.scheduler.pool, PrefixCachingBlockPool):
            self.scheduler.pool.check([request.block_ids for request in self.scheduler.running.values()])
        return plan

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Steps until a moment, or until nothing is left."""
        for _ in range(10_000):
            if until() if until else not (self.scheduler.running or self.scheduler.waiting or self.in_flight):
                return
            self.step()
        raise AssertionError("it does not end")
