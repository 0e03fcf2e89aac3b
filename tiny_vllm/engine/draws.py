"""From the logits of a step to its ids: at once, or left on the device until the next step has been launched."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tiny_vllm.engine.logprobs import Logprobs
from tiny_vllm.engine.output_processor import Answer
from tiny_vllm.engine.runner import Runner
from tiny_vllm.errors import UserError
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.types import Array, Logprob, Request, Resettable, Sampler, ScheduledRequest, StepPlan


@runtime_checkable
class AheadSampler(Protocol):
    """What a sampler has besides if it can launch a draw and leave the ids on the device."""

    def sample_ahead(self, logits: Array, requests: list[Request], out: Array) -> bool:
        """Launch the draw of R ids from logits (R,V) into out (R,) int32; False if that cannot be done for these.

        The token before may not be in output_token_ids yet: len(output_token_ids) + num_in_flight - 1 is the index of
        the one to draw.
        """


@dataclass
class Draw:
    """The ids of a step, perhaps still on their way, and the log-probabilities of the requests that want them."""

    plan: StepPlan
    ids: Any  # a list, or a Fetch
    logprobs: dict[str, dict[int, Logprob]]

    def token_ids(self) -> dict[str, int]:
        """The id of each sampled request; waits for the step."""
        names = [part.request_id for part in self.plan.requests if part.is_sampled]
        ids = self.ids if isinstance(self.ids, list) else self.ids.wait().tolist()
        return dict(zip(names, ids, strict=True))


class Drawer:
    """Draws through any Sampler, and leaves the ids where the next step looks for tokens in flight."""

    def __init__(self, runner: Runner, sampler: Sampler, tokenizer: Tokenizer) -> None:
        self._runner, self._sampler, self._tokenizer = runner, sampler, tokenizer
        self._ahead = sampler if isinstance(sampler, AheadSampler) else None  # looked up once: it takes its time
        self._compute = Logprobs(runner.device, runner.num_rows)

    def reset(self) -> None:
        """The sampler forgets all requests, if it remembers any."""
        if isinstance(self._sampler, Resettable):
            self._sampler.reset()

    def draw_ahead(self, plan: StepPlan, logits: Array, requests: list[Request]) -> Draw | None:
        """Launch the draw and wait for nothing; None where the sampler, or a log-probability, needs the host now."""
        if self._ahead is None or any(request.params.logprobs is not None for request in requests):
            return None
        if not requests:
            return Draw(plan, [], {})
        out = self._runner.last_ids[: len(requests)]
        if not self._ahead.sample_ahead(logits, requests, out):
            return None
        return Draw(plan, self._runner.device.fetch(out), {})

    def draw(self, plan: StepPlan, logits: Array, requests: list[Request]) -> Draw:
        """Draw now; every earlier token of these requests is known."""
        if not requests:
            return Draw(plan, [], {})
        ids = _checked_ids(self._sampler.sample(logits, requests), len(requests), logits.shape[1])
        self._runner.device.copy_in(self._runner.last_ids[: len(ids)], np.array(ids, np.int32))
        counts = [request.params.logprobs for request in requests]
        found = self._logprobs(logits, ids, counts, [request.params.detokenize for request in requests])
        return Draw(plan, ids, {request.request_id: each for request, each in zip(requests, found, strict=True)})

    def score_prompts(self, plan: StepPlan, answers: dict[str, Answer]) -> None:
        """Add the log-probabilities of the prompt tokens that the step's positions predict, where they are wanted.

        Called last in a step, whose logits are gone then. A preempted request's are kept and not computed again.
        """
        first_row = 0
        for part in plan.requests:
            answer = answers.get(part.request_id)
            if answer is not None and answer.prompt_logprobs is not None:
                self._score(part, first_row, answer)
            first_row += len(part.token_ids)

    def _score(self, part: ScheduledRequest, first_row: int, answer: Answer) -> None:
        prompt, found = answer.request.prompt_token_ids, answer.prompt_logprobs
        assert found is not None
        params, most = answer.request.params, self._runner.num_rows
        positions = range(max(part.start, len(found) - 1), min(part.end, len(prompt) - 1))
        for at in range(0, len(positions), most):
            few = positions[at : at + most]
            logits = self._runner.logits_of([first_row + position - part.start for position in few])
            following = [prompt[position + 1] for position in few]
            count = len(few)
            found += self._logprobs(logits, following, [params.prompt_logprobs] * count, [params.detokenize] * count)

    def _logprobs(
        self, logits: Array, ids: Sequence[int], counts: Sequence[int | None], texts: Sequence[bool]
    ) -> list[dict[int, Logprob]]:
        """A dictionary for each row; texts: whether a row's tokens are to be decoded."""
        found = self._compute(logits, ids, counts, self._tokenizer.token)
        for row, wanted in enumerate(texts):
            if not wanted:
                found[row] = {token: replace(each, decoded_token=None) for token, each in found[row].items()}
        return found


def _checked_ids(found: Any, count: int, vocab_size: int) -> list[int]:
    """What a sampler gave, which may be a student's: a wrong id would be read as a row of the embedding."""
    try:
        ids = [operator.index(token_id) for token_id in found]
    except TypeError:
        ids = []
    if len(ids) != count or not all(0 <= token_id < vocab_size for token_id in ids):
        raise UserError(f"the sampler gave {found!r:.80} for {count} rows; give {count} ids from 0 to {vocab_size - 1}")
    return ids
