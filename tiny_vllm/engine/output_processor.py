"""From token ids to what a caller gets: answers with their texts and log-probabilities, n of them to a request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tiny_vllm.engine.output_text import OutputText
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.sampling_params import MAX_SEED
from tiny_vllm.types import CompletionOutput, Logprob, Request, RequestOutput

PromptLogprobs = list[dict[int, Logprob] | None]


def fork(request: Request) -> list[Request]:
    """The n requests of one answer each that a request stands for; number i draws with seed + i, as in vLLM."""
    if request.params.n == 1:
        return [request]
    return [_child(request, index) for index in range(request.params.n)]


def _child(request: Request, index: int) -> Request:
    first, seed = index == 0, request.params.seed
    params = replace(
        request.params,
        n=1,
        seed=None if seed is None else (seed + index) % (MAX_SEED + 1),
        # The prompt's log-probabilities are the first child's to find; the others may share its blocks
        prompt_logprobs=request.params.prompt_logprobs if first else None,
    )
    return replace(
        request,
        request_id=f"{request.request_id}-{index}",
        params=params,
        output_token_ids=[],
        skip_reading_prefix_cache=first and request.skip_reading_prefix_cache,
    )


class Answer:
    """One answer while it grows, and the request that computes it.

    final_only: nobody reads its text before the end. Unless a stop string is to be found in it, it is decoded then, at
    once: token by token costs as much as planning the step.
    """

    def __init__(self, group: Group, request: Request, index: int, tokenizer: Tokenizer) -> None:
        params = request.params
        self.group, self.request, self._tokenizer = group, request, tokenizer
        self._late = group.final_only and params.detokenize and not params.stop
        self._text = OutputText(tokenizer, params)
        self._output = CompletionOutput(index, logprobs=None if params.logprobs is None else [])
        self.prompt_logprobs: PromptLogprobs | None = None if params.prompt_logprobs is None else [None]

    @property
    def finished(self) -> bool:
        return self._output.finish_reason is not None

    def advance(self, logprobs: dict[int, Logprob] | None, eos_token_ids: Iterable[int]) -> None:
        """Take in the request's newest token and, if that ended it, its finish_reason; a stop string ends it too."""
        request, output = self.request, self._output
        newest = request.output_token_ids[-1]
        if output.logprobs is not None:
            output.logprobs.append(logprobs or {})
        output.finish_reason = request.finish_reason
        if request.finish_reason == "stop":
            is_eos = newest in eos_token_ids and not request.params.ignore_eos
            output.stop_reason = None if is_eos else newest
        stop = None if self._late else self._text.add(newest, request.finish_reason)
        if stop is not None:
            output.finish_reason, output.stop_reason = "stop", stop

    def snapshot(self) -> CompletionOutput:
        """A copy, so that what was given out does not change under the reader."""
        logprobs = None if self._output.logprobs is None else list(self._output.logprobs)
        token_ids = list(self.request.output_token_ids)
        text = self._decode(token_ids) if self._late else self._text.text
        return replace(self._output, text=text, token_ids=token_ids, logprobs=logprobs)

    def _decode(self, token_ids: list[int]) -> str:
        params = self.request.params
        hides_last = self._output.finish_reason == "stop" and not params.include_stop_str_in_output
        return self._tokenizer.decode(token_ids[:-1] if hides_last else token_ids, params.skip_special_tokens)


@dataclass
class Group:
    """A request as its caller sees it: a prompt and n answers."""

    request: Request
    final_only: bool
    answers: list[Answer] = field(default_factory=list)

    def fork(self, tokenizer: Tokenizer) -> list[Answer]:
        """The answers, each with the request that is to be scheduled for it."""
        self.answers = [Answer(self, child, i, tokenizer) for i, child in enumerate(fork(self.request))]
        return self.answers

    @property
    def finished(self) -> bool:
        return all(answer.finished for answer in self.answers)

    def output(self) -> RequestOutput:
        """What the request has become."""
        request, found = self.request, self.answers[0].prompt_logprobs
        outputs = [answer.snapshot() for answer in self.answers if answer.request.output_token_ids]
        return RequestOutput(
            request.request_id,
            request.prompt,
            list(request.prompt_token_ids),
            outputs,
            self.finished,
            None if found is None else list(found),
        )
