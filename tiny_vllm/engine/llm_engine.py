"""The engine (chapter 15): requests go in at any time, and each step hands out what they have become."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any

from tiny_vllm.engine.draws import Draw
from tiny_vllm.engine.engine_stats import Counted, EngineStats, engine_stats
from tiny_vllm.engine.inputs import RequestMaker, pair_params
from tiny_vllm.engine.output_processor import Answer, Group
from tiny_vllm.engine.parts import Parts
from tiny_vllm.errors import UserError
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.types import Request, RequestOutput, Resettable, SamplingParams


class LLMEngine:
    """Continuous batching: add_request at any time, step until has_unfinished_requests is False.

    For one thread at a time; SharedEngine lets several take turns.

    eos_token_ids: they end an answer. async_scheduling: plan and launch each step before the ids of the one before are
    known (depth one), so that the device never waits for Python. The answers are the same.
    """

    def __init__(
        self,
        parts: Parts,
        tokenizer: Tokenizer,
        maker: RequestMaker,
        eos_token_ids: Iterable[int],
        async_scheduling: bool = False,
    ) -> None:
        self._parts: Parts | None = parts
        self._closed_because = "this LLM is closed; make a new one"
        self.tokenizer, self.maker, self.async_scheduling = tokenizer, maker, async_scheduling
        self._eos_token_ids = frozenset(eos_token_ids)
        self._num_blocks = parts.pool.num_free
        self._groups: dict[str, Group] = {}  # by the caller's request id
        self._answers: dict[str, Answer] = {}  # by the scheduler's: n of them a group
        self._scored: set[str] = set()  # of these, whose prompts' log-probabilities are wanted
        self._in_flight: Draw | None = None
        self._is_stepping = False
        self._num_steps = self._num_prompt_tokens = self._num_generated_tokens = 0
        self._seconds = 0.0

    # ---- requests

    def make_request(self, request_id: str, prompt: Any, params: SamplingParams) -> Request:
        """A request that can run, not yet added; UserError says what is wrong with it."""
        limits = getattr(self.check_open().scheduler, "limits", None)
        [params] = pair_params(1, params)
        request = self.maker.make(request_id, prompt, params)
        if limits is not None:
            limits.check(request)
        return request

    def add_request(
        self, request_id: str, prompt: Any, params: SamplingParams | None = None, *, final_only: bool = False
    ) -> None:
        """Put a prompt, or a Request from make_request, at the end of the queue; UserError if it cannot run.

        final_only: step() hands it out once, finished, instead of after each token.
        """
        scheduler = self.check_open().scheduler
        if not isinstance(prompt, Request):
            prompt = self.make_request(request_id, prompt, params or SamplingParams())
        if prompt.request_id != request_id or prompt.output_token_ids or prompt.finish_reason:
            raise UserError(f"request {request_id!r} is another one's, or has run already; make a new one")
        group = Group(prompt, final_only)
        answers = {answer.request.request_id: answer for answer in group.fork(self.tokenizer)}
        if request_id in self._groups or answers.keys() & self._answers.keys():
            raise UserError(f"request id {request_id!r} is taken; give each request an id of its own")
        self._groups[request_id] = group
        self._answers |= answers
        self._scored |= {name for name, answer in answers.items() if answer.prompt_logprobs is not None}
        try:
            for answer in answers.values():
                scheduler.add(answer.request)
        except BaseException:  # refused, or Ctrl-C
            self.abort_request(request_id)
            raise
        self._num_prompt_tokens += len(prompt.prompt_token_ids)

    def abort_request(self, request_id: str) -> None:
        """End a request, whatever it is at; nothing more is heard of it. Nothing happens if it has ended."""
        parts, group = self.check_open(), self._groups.pop(request_id, None)
        try:
            for answer in group.answers if group else []:
                if not answer.finished:
                    parts.scheduler.abort(answer.request.request_id)
                    self._forget(parts, answer)
        except BaseException as error:
            self._abandon(parts, error)
            raise

    def is_unfinished(self, request_id: str) -> bool:
        """Whether more will be heard of this request."""
        self.check_open()
        return request_id in self._groups

    def has_unfinished_requests(self) -> bool:
        return bool(self._groups)

    # ---- steps

    def step(self) -> list[RequestOutput]:
        """One step of the model; what has become of the requests that got a token by it (by the one before, when
        async_scheduling).

        If anything goes wrong in it, Ctrl-C included, every unfinished request is aborted and the error raised; the
        engine goes on with new requests, or is closed if the device itself has failed.
        """
        parts, start = self.check_open(), time.perf_counter()
        if self._is_stepping:
            raise UserError("a step is asked for in the middle of a step; a sampler, scheduler or pool cannot do that")
        self._is_stepping = True
        try:
            outputs = self._outputs(parts, self._advance(parts))
            if not self._groups:
                self._settle(parts)
        except BaseException as error:
            if self.closed and isinstance(error, Exception):  # close() was called in the middle of the step
                raise UserError(self._closed_because) from error
            self._abandon(parts, error)
            raise
        finally:
            self._is_stepping = False
        self._seconds += time.perf_counter() - start
        return outputs

    def _advance(self, parts: Parts) -> list[Answer]:
        """Plan and launch a step, take in the ids of this one or of the one before; the answers that got a token."""
        plan = parts.scheduler.schedule()
        if not plan.requests:
            assert self._in_flight or not self._groups, "the scheduler plans nothing though requests wait"
            return self._take_in(parts)
        logits = parts.runner.forward(plan, last_only=not self._scored)
        self._num_steps += 1
        answers = dict(self._answers)
        requests = [answers[part.request_id].request for part in plan.requests if part.is_sampled]
        ahead = parts.drawer.draw_ahead(plan, logits, requests)
        updated = self._take_in(parts)
        self._in_flight = ahead or parts.drawer.draw(plan, logits, requests)
        parts.drawer.score_prompts(plan, answers)
        return updated if self.async_scheduling else updated + self._take_in(parts)

    def _take_in(self, parts: Parts) -> list[Answer]:
        """Tell the scheduler what the step in flight drew, if there is one."""
        draw, self._in_flight = self._in_flight, None
        if draw is None:
            return []
        updated = [self._answers[r.request_id] for r in parts.scheduler.update(draw.plan, draw.token_ids())]
        self._num_generated_tokens += len(updated)
        for answer in updated:
            answer.advance(draw.logprobs.get(answer.request.request_id), self._eos_token_ids)
            if answer.finished:
                if answer.request.finish_reason is None:  # a stop string, which the scheduler cannot see
                    parts.finish(answer.request)
                self._forget(parts, answer)
        return updated

    def _outputs(self, parts: Parts, updated: list[Answer]) -> list[RequestOutput]:
        told = [answer.group for answer in updated if answer.finished or not answer.group.final_only]
        groups = list({id(group): group for group in told}.values())
        finished = [group.finished for group in groups]
        for group in itertools.compress(groups, finished):
            del self._groups[group.request.request_id]
        return [group.output() for group, ended in zip(groups, finished) if ended or not group.final_only]

    def _forget(self, parts: Parts, answer: Answer) -> None:
        self._answers.pop(answer.request.request_id, None)
        self._scored.discard(answer.request.request_id)
        parts.runner.forget(answer.request.request_id)

    def _settle(self, parts: Parts) -> None:
        """Nothing is left to do: drop the step in flight, whose requests have all ended, and look for lost blocks."""
        self._take_in(parts)
        assert parts.pool.num_free == self._num_blocks, f"{self._num_blocks - parts.pool.num_free} blocks have leaked"

    def _abandon(self, parts: Parts, error: BaseException) -> None:
        self._in_flight = None
        requests = [answer.request for answer in self._answers.values()]
        self._answers.clear()
        self._scored.clear()
        self._groups.clear()
        try:
            if not isinstance(parts.scheduler, Resettable):
                for request in requests:
                    parts.scheduler.abort(request.request_id)
            parts.reset()
            whole = parts.pool.num_free == self._num_blocks
        except BaseException:  # a student's part, the device, or Ctrl-C again
            whole = False
        if not whole:
            self.close()
            self._closed_because = f"this LLM has stopped after an error ({error!r}); make a new one"

    # ---- state

    def warm_up(self) -> None:
        """Run and capture now what would be when it first comes; between two steps, even while one is in flight."""
        self.check_open().runner.warm_up()

    def stats(self) -> EngineStats:
        """Figures of this moment and since the start."""
        parts = self.check_open()
        requests = [answer.request for answer in self._answers.values()]
        counted = Counted(
            self._num_steps,
            self._num_prompt_tokens,
            self._num_generated_tokens,
            parts.runner.graphs.num_captured,
            self._seconds,
        )
        return engine_stats(parts.scheduler, self._num_blocks, parts.pool.num_free, requests, counted)

    @property
    def closed(self) -> bool:
        return self._parts is None

    def check_open(self) -> Parts:
        """Runner, scheduler, pool and sampler; UserError after close()."""
        if self._parts is None:
            raise UserError(self._closed_because)
        return self._parts

    def close(self) -> None:
        """Let go of all device memory; unfinished requests are gone."""
        self._parts = self._in_flight = None
        self._groups, self._answers = {}, {}
