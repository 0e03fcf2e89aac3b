"""The engine: a request goes in, its answer comes out token by token. One request after another."""

from __future__ import annotations

from collections.abc import Iterator

from tiny_vllm.engine.detokenizer import Detokenizer
from tiny_vllm.engine.runner import Runner
from tiny_vllm.engine.sampler import logprobs_of
from tiny_vllm.errors import UserError
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.types import Array, CompletionOutput, Logprob, Request, RequestOutput, Sampler, StepPlan


class Engine:
    """Runner, sampler and text. eos_token_ids end an answer; max_model_len bounds prompt and answer together."""

    def __init__(
        self, runner: Runner, sampler: Sampler, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...], max_model_len: int
    ) -> None:
        self._parts: tuple[Runner, Sampler] | None = (runner, sampler)
        self.tokenizer = tokenizer
        self.eos_token_ids, self.max_model_len = frozenset(eos_token_ids), max_model_len
        self._cached: Request | None = None

    @property
    def closed(self) -> bool:
        return self._parts is None

    def close(self) -> None:
        """Let go of all device memory; a stream that is still open raises at its next token."""
        self._parts = None

    def check_open(self) -> tuple[Runner, Sampler]:
        """Runner and sampler; UserError after close()."""
        if self._parts is None:
            raise UserError("this LLM is closed; make a new one")
        return self._parts

    def generate_stream(self, request: Request) -> Iterator[RequestOutput]:
        """What the request has become after each new token; the last one is `finished`.

        finish_reason is "stop" at an end-of-sequence token, which is in token_ids and not in the text (unless
        ignore_eos), and "length" at max_tokens or max_model_len.
        """
        output = CompletionOutput(logprobs=None if request.params.logprobs is None else [])
        detokenizer = Detokenizer(self.tokenizer)
        while output.finish_reason is None:
            token_id, logprobs = self._next_token(request)
            if output.logprobs is not None:
                output.logprobs.append(logprobs)
            request.output_token_ids.append(token_id)
            output.finish_reason = self._finish_reason(request)
            if output.finish_reason != "stop":
                detokenizer.add(token_id)
            if output.finish_reason:
                detokenizer.flush()
            yield _snapshot(request, output, detokenizer.text)

    def _next_token(self, request: Request) -> tuple[int, dict[int, Logprob]]:
        """A token id and, if they are asked for, the log-probabilities of its position."""
        runner, sampler = self.check_open()
        logits = self._catch_up(request, runner)
        [token_id] = sampler.sample(logits, [request])
        count = request.params.logprobs
        if count is None:
            return token_id, {}
        return token_id, logprobs_of(runner.device.to_host(logits)[0], token_id, count, self.tokenizer.token)

    def _catch_up(self, request: Request, runner: Runner) -> Array:
        """Bring the cache up to the request's last known token, chunk by chunk; its logits, (1,V) float32."""
        if self._cached is not request:  # the blocks hold another request's keys, even if this one ran before it
            self._cached, request.num_computed_tokens = request, 0
        while True:
            left = request.num_tokens - request.num_computed_tokens
            plan = StepPlan({request.request_id: min(left, runner.max_num_batched_tokens)})
            logits = runner.step(request, plan)
            request.num_computed_tokens += plan.num_scheduled_tokens[request.request_id]
            if request.num_computed_tokens == request.num_tokens:
                return logits

    def _finish_reason(self, request: Request) -> str | None:
        if request.output_token_ids[-1] in self.eos_token_ids and not request.params.ignore_eos:
            return "stop"
        full = request.num_tokens >= self.max_model_len
        return "length" if full or len(request.output_token_ids) >= request.params.max_tokens else None


def _snapshot(request: Request, output: CompletionOutput, text: str) -> RequestOutput:
    """A copy, so that what was given out does not change under the reader."""
    logprobs = None if output.logprobs is None else list(output.logprobs)
    answer = CompletionOutput(0, text, list(request.output_token_ids), logprobs, output.finish_reason)
    prompt_token_ids = list(request.prompt_token_ids)
    return RequestOutput(
        request.request_id, request.prompt, prompt_token_ids, [answer], output.finish_reason is not None
    )
