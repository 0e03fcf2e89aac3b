"""Random arrivals, lengths, shared prefixes and aborts over scheduler and pool; everything is checked at every step."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

from tests.engine.hash_model import EOS, STOP, VOCAB, HashModel, PlainPool, hashes, lone_run, next_token
from tiny_vllm.engine.block_pool import PrefixCachingBlockPool
from tiny_vllm.engine.scheduler import Scheduler
from tiny_vllm.errors import UserError
from tiny_vllm.types import Request, SamplingParams, ScheduledRequest, StepPlan


@dataclass
class Setting:
    """One episode's limits."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool | None  # None: a PlainPool
    overlapped: bool

    @staticmethod
    def draw(rng: random.Random) -> Setting:
        """Any mixture; one pool in three is the smallest that holds the longest request, some are smaller still."""
        size, max_model_len = rng.choice([1, 2, 4, 8, 16]), rng.randrange(2, 50)
        smallest = -(-(max_model_len - 1) // size)
        num_blocks = smallest + rng.choice([0, 0, 1, 2, rng.randrange(-smallest + 1, 4 * smallest), 6 * smallest])
        budget = rng.choice([1, 2, 7, size, size + 1, 16, 64])
        prefix_caching = rng.choice([True, True, True, False, None])
        return Setting(
            num_blocks, size, rng.choice([1, 2, 3, 5, 9, 40]), budget, max_model_len, prefix_caching, rng.random() < 0.5
        )


@dataclass
class Entry:
    """What the simulation keeps of a request: its number and what is due by when."""

    request: Request
    number: int
    first_token_due: int
    ended: bool = False


@dataclass
class Simulation:
    """A driver of the plain or overlapped loop that checks everything at every step."""

    setting: Setting
    rng: random.Random
    seen: Counter[str] = field(default_factory=Counter)  # what happened, so that a test can say that it did

    def __post_init__(self) -> None:
        s = self.setting
        caching = PrefixCachingBlockPool(s.num_blocks, s.block_size, bool(s.prefix_caching))
        self.pool = PlainPool(s.num_blocks, s.block_size) if s.prefix_caching is None else caching
        self.scheduler = Scheduler(
            self.pool,
            max_num_seqs=s.max_num_seqs,
            max_num_batched_tokens=s.max_num_batched_tokens,
            max_model_len=s.max_model_len,
            eos_token_ids=(EOS,),
        )
        self.model = HashModel(s.num_blocks, s.block_size)
        self.prefixes = [self._tokens(s.max_model_len) for _ in range(3)]
        self.entries: dict[str, Entry] = {}
        self.in_flight: deque[tuple[StepPlan, dict[str, int]]] = deque()
        self.num_steps = self.num_requests = self.growth = self.hits = self.queries = 0

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(2, VOCAB) for _ in range(count)]

    # Arrivals and aborts

    def arrive(self) -> None:
        """Add a request; one that the limits forbid must be refused, and only such a one."""
        s, rng = self.setting, self.rng
        length = rng.choice(
            [1, s.block_size, s.block_size + 1, 2 * s.block_size, rng.randrange(1, s.max_model_len + 2)]
        )
        if rng.random() < 0.8:
            length = min(length, s.max_model_len - 1)
        shared = rng.choice(self.prefixes)[: rng.choice([0, length, rng.randrange(length + 1)])]
        prompt = (shared + self._tokens(length))[:length]
        params = SamplingParams(max_tokens=rng.choice([1, 8, 20, rng.randrange(1, 60)]), ignore_eos=rng.random() < 0.5)
        stop = frozenset([STOP]) if rng.random() < 0.2 else frozenset()
        request_id = str(rng.randrange(60))  # ids come again
        self.num_requests += 1
        request = Request(request_id, prompt, params, stop_token_ids=stop)
        there = request_id in self.entries
        last = min(length + params.max_tokens, s.max_model_len) - 1
        fits = length < s.max_model_len and last <= s.num_blocks * s.block_size
        try:
            self.scheduler.add(request)
        except UserError:
            assert there or not fits, "a request that fits was refused"
            self.seen["refused"] += 1
        else:
            assert fits and not there, "a request that can never end was taken in"
            ahead = [entry.request for entry in self.entries.values()]
            due = self.num_steps + sum(map(self._own_steps, ahead)) + -(-length // s.max_num_batched_tokens) + 2
            self.entries[request_id] = Entry(request, self.num_requests, due)

    def _own_steps(self, request: Request) -> int:
        """Steps that a request may take once it is the oldest, whatever state it is in.

        In each it has the whole budget and every block that it wants: it catches up with what it has in chunks, then
        draws a token a step. In the overlapped loop its end shows one step late, and a token that was in flight when
        it was last preempted is drawn again.
        """
        longest = min(len(request.prompt_token_ids) + request.params.max_tokens, self.setting.max_model_len)
        chunks = -(-longest // self.setting.max_num_batched_tokens)
        return chunks + request.params.max_tokens + 2 * self.setting.overlapped

    def abort(self) -> None:
        """Abort some request, or one that may have ended or never was."""
        request_id = str(self.rng.randrange(60))
        if self.entries and self.rng.random() < 0.7:
            request_id = self.rng.choice([*self.entries, *list(self.scheduler.waiting)[:1]])  # it may be preempted
        entry = self.entries.pop(request_id, None)
        self.seen["abort " + self._state(request_id)] += 1
        self.scheduler.abort(request_id)
        if entry is None:
            return
        answer, _ = lone_run(entry.request, self.setting.max_model_len)
        output = entry.request.output_token_ids
        self.growth += self._growth(entry.request)
        assert entry.request.finish_reason == "abort" and output == answer[: len(output)]
        if self.rng.random() < 0.3:
            self.scheduler.abort(request_id)
            self.seen["abort twice"] += 1

    def _state(self, request_id: str) -> str:
        waiting, running = self.scheduler.waiting.get(request_id), self.scheduler.running.get(request_id)
        if waiting:
            return "preempted" if waiting.num_preemptions else "waiting"
        if not running:
            return "unknown or ended"
        if running.num_in_flight:
            return "in flight"
        return "running" if running.num_computed_tokens >= len(running.prompt_token_ids) else "half prefilled"

    # Steps

    def step(self, abort_rate: float) -> None:
        """Schedule and run a step; take in its tokens now, or those of the step before."""
        before = set(self.scheduler.running)
        plan = self.scheduler.schedule()
        self.num_steps += 1
        self._check_plan(plan, before)
        drawn = self.model.run(plan)
        self._check_context(plan)
        if plan.requests:
            self.in_flight.append((plan, drawn))
        self.check()
        if self.rng.random() < abort_rate:
            self.abort()
        if self.in_flight and (len(self.in_flight) > self.setting.overlapped or not plan.requests):
            self.update()
        self.check()

    def update(self) -> None:
        plan, drawn = self.in_flight.popleft()
        stale = {p.request_id for p in plan.requests if p.epoch != self._epoch(p.request_id)}
        updated = self.scheduler.update(plan, drawn)
        names = [request.request_id for request in updated]
        assert names == [p.request_id for p in plan.requests if p.is_sampled and p.request_id not in stale]
        self.seen["dropped"] += len(stale)
        for request in updated:
            entry = self.entries[request.request_id]
            assert len(request.output_token_ids) > 1 or self.num_steps <= entry.first_token_due, "first token late"
            if request.finish_reason:
                del self.entries[request.request_id]
                assert (request.output_token_ids, request.finish_reason) == lone_run(
                    request, self.setting.max_model_len
                )
                self.seen[request.finish_reason] += 1
                self.growth += self._growth(request)

    def _epoch(self, request_id: str) -> int | None:
        return self.entries[request_id].request.epoch if request_id in self.entries else None

    def _growth(self, request: Request) -> int:
        """Blocks that a request may have wanted after it was first admitted; each preempts one request at most."""
        length, size = len(request.prompt_token_ids), self.setting.block_size
        most = min(length + request.params.max_tokens, self.setting.max_model_len) - 1
        first, last = min(length + 1, most), min(request.num_tokens + 1, most)
        return -(-last // size) - -(-first // size)

    def drain(self) -> None:
        """Run until nothing is left, in bounded steps, with nothing left behind."""
        due = self.num_steps + 2 + sum(self._own_steps(entry.request) for entry in self.entries.values())
        while self.entries or self.in_flight:
            assert self.num_steps <= due, "thrash: the requests do not end"
            self.step(abort_rate=0)
        self.check()
        assert self.pool.num_free == self.setting.num_blocks, "blocks have leaked"
        assert self.scheduler.stats().num_preemptions <= self.growth, "thrash: more preemptions than blocks grown into"

    # What must hold

    def check(self) -> None:
        """Integrity of pool and queues, at any moment."""
        running, waiting = list(self.scheduler.running.values()), list(self.scheduler.waiting.values())
        self.pool.check([request.block_ids for request in running])
        assert all(request.block_ids == [] and request.num_computed_tokens == 0 for request in waiting)
        assert len(running) <= self.setting.max_num_seqs
        numbers = [self.entries[request.request_id].number for request in running + waiting]
        assert numbers == sorted(self.entries[name].number for name in self.entries), "not in order of arrival"
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting) == (len(running), len(waiting))
        assert stats.num_used_blocks == len({block for request in running for block in request.block_ids})
        assert (stats.prefix_hits, stats.prefix_queries) == (self.hits, self.queries), (
            "a resumed request counts as a hit"
        )

    def _check_plan(self, plan: StepPlan, before: set[str]) -> None:
        counts = plan.num_scheduled_tokens
        assert counts == {part.request_id: len(part.token_ids) for part in plan.requests}
        assert list(counts) == [name for name in self.scheduler.running if name in counts], "not in order"
        assert all(counts.values()) and sum(counts.values()) <= self.setting.max_num_batched_tokens
        assert counts or not self.entries or self.in_flight, "nothing is planned while work waits"
        if sum(counts.values()) < self.setting.max_num_batched_tokens:  # then nobody is left behind
            for request in self.scheduler.running.values():
                assert request.num_computed_tokens == request.num_tokens + request.num_in_flight - 1
                assert request.num_in_flight > 0
            assert self.scheduler.running or not self.scheduler.waiting, "the first in the queue is not let in"
        writers = Counter(block for request in self.scheduler.running.values() for block in request.block_ids)
        for part in plan.requests:
            request, size = self.entries[part.request_id].request, self.setting.block_size
            written = request.block_ids[part.start // size : -(-part.end // size)]
            assert all(writers[block] == 1 for block in written), "a step writes to a shared block"
            if part.request_id not in before:
                self._note_admission(request, part)
            self.seen["chunk"] += not part.is_sampled
        self.seen["preempted"] += len(before - set(self.scheduler.running))

    def _note_admission(self, request: Request, part: ScheduledRequest) -> None:
        self.seen["prefix hit"] += part.start > 0
        self.seen["resumed"] += request.num_preemptions > 0
        if request.num_preemptions == 0:
            assert part.start == request.num_cached_tokens
            self.hits, self.queries = self.hits + part.start, self.queries + request.num_tokens

    def _check_context(self, plan: StepPlan) -> None:
        """Each request reads its own tokens' hashes and nothing else; the token in flight is what will be drawn."""
        for part in plan.requests:
            request = self.entries[part.request_id].request
            answer, _ = lone_run(request, self.setting.max_model_len)
            true = (request.prompt_token_ids + answer)[: part.end]
            true += [next_token(hashes(true)[-1])] * (part.end - len(true))  # one step beyond the end, not yet known
            assert self.model.context(part) == hashes(true), "another request's keys"


def run_episode(seed: int, num_steps: int = 200, setting: Setting | None = None) -> Counter[str]:
    """Random arrivals and aborts for num_steps, then the rest until all is done; counts of what happened."""
    rng = random.Random(seed)
    simulation = Simulation(setting or Setting.draw(rng), rng)
    arrival_rate, abort_rate = rng.choice([0.1, 0.5, 0.9]), rng.choice([0.0, 0.05, 0.2])
    most = rng.choice([4, 12, 12, 40])
    for _ in range(num_steps):
        while rng.random() < arrival_rate and len(simulation.entries) < most:
            simulation.arrive()
        if rng.random() < abort_rate:
            simulation.abort()
        simulation.step(abort_rate)
    simulation.drain()
    simulation.seen["steps"] += simulation.num_steps
    return simulation.seen
