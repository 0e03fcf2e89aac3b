"""The scheduler: what each step computes (chapters 12 and 15), as in vLLM's V1; it needs no device.

There is no prefill or decode phase. Each request has num_computed_tokens, which catches up with its tokens under the
budget of a step: a long prompt comes in chunks beside the next tokens of others, a prefix that the pool knows is a
head start, and a preempted request begins again at 0 (Yu et al., 2022: iteration-level scheduling).
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable

from tiny_vllm.engine.engine_stats import SchedulerStats
from tiny_vllm.engine.limits import Limits
from tiny_vllm.errors import UserError
from tiny_vllm.types import IN_FLIGHT, BlockPool, PrefixCache, Request, Resettable, ScheduledRequest, StepPlan


class Scheduler:
    """First come, first served. `running` and then `waiting` are in order of arrival, and stay so.

    pool: all its blocks are free and for this scheduler alone; a PrefixCache is used as one.
    max_num_seqs, max_num_batched_tokens, max_model_len: see Limits. eos_token_ids: they end an answer, unless its
    ignore_eos.

    The oldest request is never preempted, so it goes on in every step, and every request becomes the oldest.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        is_on = getattr(pool, "enable_prefix_caching", True)  # one that is switched off need not be asked
        self.pool, self.prefix_cache = pool, pool if is_on and isinstance(pool, PrefixCache) else None
        self.limits = Limits(max_num_seqs, max_num_batched_tokens, max_model_len, pool.num_free, pool.block_size)
        self.eos_token_ids = frozenset(eos_token_ids)
        self.running: OrderedDict[str, Request] = OrderedDict()
        self.waiting: OrderedDict[str, Request] = OrderedDict()
        self._epochs = itertools.count()  # never one twice, so that a request id may come again
        self._newest: StepPlan | None = None  # whose full blocks nobody can find yet
        self._prefix_queries = self._prefix_hits = self._num_preemptions = 0

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue; UserError if it could never be finished."""
        if request.request_id in self.running or request.request_id in self.waiting:
            raise UserError(f"request id {request.request_id!r} is taken; give each request an id of its own")
        self.limits.check(request)
        request.epoch, request.max_num_tokens = next(self._epochs), self.limits.max_num_tokens(request)
        self.waiting[request.request_id] = request

    def abort(self, request_id: str) -> None:
        """End a request, whatever it is at, and take back its blocks; nothing happens if it has ended or never was."""
        self.finish(request_id, "abort")

    def finish(self, request_id: str, finish_reason: str) -> None:
        """End a request for a reason that the scheduler cannot see, such as a stop string."""
        request = self.running.pop(request_id, None) or self.waiting.pop(request_id, None)
        if request is not None:
            self._give_up_blocks(request)
            request.finish_reason = finish_reason

    def reset(self) -> None:
        """Forget all requests and prefixes: after an error, or Ctrl-C, that may have come in the middle of anything."""
        for requests in (self.running, self.waiting):
            for request in requests.values():
                request.finish_reason = "abort"
            requests.clear()
        self._newest = None
        if isinstance(self.pool, Resettable):
            self.pool.reset()

    def schedule(self) -> StepPlan:
        """Plan a step: the running requests in order, then those waiting. Empty if nothing can go on before update.

        The plan counts as done at once: the next may be made before this one's update, and then holds IN_FLIGHT for
        the ids that are not yet known. At most one step more, and updates come in the order of the plans.
        """
        self._cache_full_blocks()
        parts: list[ScheduledRequest] = []
        budget = self.limits.max_num_batched_tokens
        for request in list(self.running.values()):
            if request.request_id not in self.running or not budget:
                break  # preempted by an older one, and with it all that came later
            first_new_block, count = len(request.block_ids), min(self._num_pending(request), budget)
            if count and self._grow(request, count):
                parts.append(self._take(request, count, first_new_block))
                budget -= count
        while budget and self.waiting and len(self.running) < self.limits.max_num_seqs and self._admit():
            request = next(reversed(self.running.values()))
            count = min(self._num_pending(request), budget)
            parts.append(self._take(request, count, first_new_block=0))
            budget -= count
        self._newest = StepPlan({part.request_id: len(part.token_ids) for part in parts}, tuple(parts))
        return self._newest

    def update(self, plan: StepPlan, token_ids: dict[str, int]) -> list[Request]:
        """Take in what a step drew, for each of its requests that is_sampled; returns the requests that got a token.

        Those that ended have a finish_reason, and their blocks are free. If a request ended or was preempted after the
        plan was made, its id is dropped.
        """
        if plan is self._newest:
            self._cache_full_blocks()
        updated = []
        for part in plan.requests:
            request = self._owner(part)
            if request is None:
                continue
            if part.is_sampled:
                request.num_in_flight -= 1
                request.output_token_ids.append(token_ids[part.request_id])
                updated.append(request)
                reason = self._finish_reason(request)
                if reason:
                    self.finish(request.request_id, reason)
        return updated

    def stats(self) -> SchedulerStats:
        """Figures of this moment."""
        num_blocks = self.limits.num_blocks
        totals = self._prefix_queries, self._prefix_hits, self._num_preemptions
        num_used = num_blocks - self.pool.num_free
        return SchedulerStats(len(self.running), len(self.waiting), num_blocks, num_used, *totals)

    def _owner(self, part: ScheduledRequest) -> Request | None:
        """The request of a part; None if it has ended or was preempted since it was planned."""
        request = self.running.get(part.request_id)
        return request if request is not None and request.epoch == part.epoch else None

    def _num_pending(self, request: Request) -> int:
        """Tokens to compute; 0 if the token in flight may be the last, which is never computed."""
        num_tokens = request.num_tokens + request.num_in_flight
        return 0 if num_tokens >= request.max_num_tokens else num_tokens - request.num_computed_tokens

    def _take(self, request: Request, count: int, first_new_block: int) -> ScheduledRequest:
        """The next `count` tokens of a request, which has the blocks for them."""
        start, end, num_known = request.num_computed_tokens, request.num_computed_tokens + count, request.num_tokens
        token_ids = tuple(request.tokens_between(start, end)) if start < num_known else ()
        is_sampled = end == num_known + request.num_in_flight
        request.num_computed_tokens = end
        request.num_in_flight += is_sampled
        return ScheduledRequest(
            request.request_id,
            request.epoch,
            start,
            token_ids if end <= num_known else (*token_ids, IN_FLIGHT),
            is_sampled,
            first_new_block,
            tuple(request.block_ids[first_new_block:]),
        )

    def _admit(self) -> bool:
        """Move the first of `waiting` to `running` if there is room for its prompt and the first token after it.

        The whole of it, though it may be computed in chunks: then only a token after the prompt can find no block,
        and a preempted request does not come back for less than it lost. So each block that an answer grows into
        preempts at most once, and that bounds the preemptions.
        """
        request = next(iter(self.waiting.values()))
        shared = self._lookup(request)
        num_tokens = min(request.num_tokens + 1, request.max_num_tokens - 1)
        num_new = self.limits.blocks_for(num_tokens) - len(shared)
        free = self.prefix_cache.num_free_beside(shared) if self.prefix_cache else self.pool.num_free
        if num_new > free:
            return False
        if self.prefix_cache:
            self.prefix_cache.share(shared)  # before allocate, which could give these blocks away
        request.block_ids = shared + self.pool.allocate(num_new)
        request.num_computed_tokens = len(shared) * self.pool.block_size
        if not request.num_preemptions:
            request.num_cached_tokens = request.num_computed_tokens
            self._prefix_queries += request.num_tokens
            self._prefix_hits += request.num_cached_tokens
        self.running[request.request_id] = self.waiting.pop(request.request_id)
        return True

    def _lookup(self, request: Request) -> list[int]:
        """Cached blocks that the request begins with, without the last token: its logits are always computed.

        It then goes to a block of the request's own, so nobody writes to a block that others read.
        """
        if self.prefix_cache is None or request.skip_reading_prefix_cache:
            return []
        return self.prefix_cache.lookup(request.tokens_between(0, request.num_tokens - 1))

    def _grow(self, request: Request, count: int) -> bool:
        """Get the blocks for `count` more tokens; False if the request was itself the youngest and had to go."""
        end, size = request.num_computed_tokens + count, self.pool.block_size
        if end <= len(request.block_ids) * size:
            return True
        num_new = -(-end // size) - len(request.block_ids)
        while num_new > self.pool.num_free:
            youngest = next(reversed(self.running.values()))
            self._preempt(youngest)
            if youngest is request:
                return False
        request.block_ids += self.pool.allocate(num_new)
        return True

    def _preempt(self, request: Request) -> None:
        """Back to the front of the queue; what it computed is computed again (recomputation, as in Kwon et al.)."""
        self.waiting[request.request_id] = self.running.pop(request.request_id)
        self.waiting.move_to_end(request.request_id, last=False)
        self._give_up_blocks(request)
        request.num_preemptions += 1
        self._num_preemptions += 1

    def _give_up_blocks(self, request: Request) -> None:
        """Blocks go back at once, even if a step in flight still writes to them.

        One stream runs the steps in order, so whoever gets the blocks in a later step writes after that. And a full
        block that stays cached is safe: a step in flight writes behind it, or what it is cached for.
        """
        self.pool.free(request.block_ids)
        request.block_ids, request.num_computed_tokens, request.num_in_flight = [], 0, 0
        request.epoch = next(self._epochs)

    def _cache_full_blocks(self) -> None:
        """Let others find the blocks that the newest plan fills: all its ids are known by now.

        Its step has been launched, and who reads the blocks runs after it. So this is done while the device computes,
        and not when the first token of a long prompt waits to be handed out.
        """
        plan, self._newest = self._newest, None
        if plan is None or self.prefix_cache is None:
            return
        size = self.pool.block_size
        for part in plan.requests:
            request = self._owner(part)
            if request is None:
                continue
            for index in range(part.start // size, part.end // size):
                token_ids = request.tokens_between(index * size, (index + 1) * size)
                self.prefix_cache.cache(request.block_ids, index, token_ids)

    def _finish_reason(self, request: Request) -> str | None:
        last = request.output_token_ids[-1]
        ends_sequence = last in self.eos_token_ids and not request.params.ignore_eos
        if ends_sequence or last in request.stop_token_ids:
            return "stop"
        return "length" if request.num_tokens >= request.max_num_tokens else None
