"""SamplingParams: how the next token is chosen and where an answer ends, under vLLM's names; every value is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any

from tiny_vllm.errors import UserError

MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_N = 16384  # as in vLLM: each of the n answers is a request of its own
MAX_SEED = 2**64 - 1
PLAIN = (int, float, bool, type(None), str, tuple)  # types of values that need no look at what kind of number they are


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen and where an answer ends, under vLLM's names and with its meanings.

    n: so many answers to the prompt; number i draws with seed + i.

    The choice, in the order in which it is made:
    min_tokens:         before so many tokens, none comes that would end the answer, and no stop string is looked for.
    logit_bias:         {token id: number from -100 to 100}, added to logits.
    repetition_penalty: tokens of the prompt and the answer: a positive logit is divided by it, another multiplied.
    frequency_penalty:  subtracted for each time that the answer has the token.
    presence_penalty:   subtracted if the answer has the token.
    temperature:        0 (or less than 1e-5) is greedy: the lowest id wins a tie; else logits are divided by it.
    min_p:              only tokens that are at least min_p times as likely as the likeliest; 0 is off.
    top_k:              only the k likeliest, of equal ones those of lowest id; 0 or -1 is off, 1 is greedy.
    top_p:              only the likeliest that together have this share of what is left; the one that crosses it stays,
                        and of equal ones those of lowest id; 1 is off.
    seed:               the same seed gives the same draws, whatever else runs.

    The end: an end-of-sequence token (unless ignore_eos), one of stop_token_ids, a text of `stop`, or max_tokens. The
    text is cut before a stop text, and does not hold a token that ended it, unless include_stop_str_in_output.

    logprobs, prompt_logprobs: None, or how many of the likeliest tokens to report besides the one at each position of
        the answer, of the prompt: log-softmax of the model's logits, before anything above changes them.
    detokenize: False gives no text, only ids. skip_special_tokens: leave them out of the text.
    """

    temperature: float = 1.0
    max_tokens: int = 16
    ignore_eos: bool = False
    logprobs: int | None = None
    seed: int | None = None
    n: int = 1
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) not in PLAIN:
                object.__setattr__(self, name, plain_number(value))
        self._check_choice()
        self._check_end()
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} is {getattr(self, name)!r}; give True or False")
        if self.stop and not self.detokenize:
            raise UserError("stop needs the text, and detokenize is False; leave one of them out")

    @cached_property  # asked for at every step
    def is_greedy(self) -> bool:
        """Nothing is drawn: below 1e-5, as in vLLM, a temperature leaves nothing but the likeliest token."""
        return self.temperature < 1e-5 or self.top_k == 1

    @cached_property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def _check_choice(self) -> None:
        _check_integer("n", self.n, 1, MAX_N)
        _check_number("temperature", self.temperature, 0)
        if self.n > 1 and self.temperature < 1e-5:
            raise UserError(f"n is {self.n} and temperature {self.temperature:g}: {self.n} equal answers; give n=1")
        if self.top_k != -1:
            _check_integer("top_k", self.top_k, 0, also=", or -1")
        _check_number("top_p", self.top_p, 0, 1, but_not_low=True)
        _check_number("min_p", self.min_p, 0, 1)
        _check_number("repetition_penalty", self.repetition_penalty, 0, but_not_low=True)
        _check_number("presence_penalty", self.presence_penalty, -2, 2)
        _check_number("frequency_penalty", self.frequency_penalty, -2, 2)
        if self.seed is not None:
            _check_integer("seed", self.seed, 0, MAX_SEED)
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    def _check_end(self) -> None:
        _check_integer("max_tokens", self.max_tokens, 1)
        _check_integer("min_tokens", self.min_tokens, 0)
        if self.min_tokens > self.max_tokens:
            raise UserError(
                f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}; lower one, raise the other"
            )
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not _is_sequence(stops) or not all(isinstance(text, str) and text for text in stops):
            raise UserError(f"stop is {self.stop!r}; give a text, or a list of texts, none of them empty")
        ids = self.stop_token_ids
        ids = [plain_number(i) for i in ids] if _is_sequence(ids) else ids
        if not _is_sequence(ids) or not all(_is_integer(i) and i >= 0 for i in ids) or len(ids) > MAX_STOP_TOKEN_IDS:
            raise UserError(f"stop_token_ids is {ids!r:.200}; give a list of token ids, at most {MAX_STOP_TOKEN_IDS}")
        object.__setattr__(self, "stop", tuple(stops))  # a caller may change its list later
        object.__setattr__(self, "stop_token_ids", tuple(ids))


def _checked_bias(bias: Any) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise UserError(f"logit_bias is {bias!r:.200}; give {{token id: number from -100 to 100}}")
    if len(bias) > MAX_LOGIT_BIASES:
        raise UserError(f"logit_bias has {len(bias)} token ids; give at most {MAX_LOGIT_BIASES}")
    bias = {plain_number(token_id): plain_number(value) for token_id, value in bias.items()}
    for token_id, value in bias.items():
        _check_integer("a token id of logit_bias", token_id, 0)
        _check_number(f"logit_bias of token id {token_id}", value, -100, 100)
    return bias


def plain_number(value: Any) -> Any:
    """A number of another library, such as NumPy's, as Python's own; anything else as it is."""
    if isinstance(value, Integral):
        return value if isinstance(value, bool) else int(value)
    return float(value) if isinstance(value, Real) else value


def _check_number(name: str, value: Any, low: float, high: float = float("inf"), but_not_low: bool = False) -> None:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if ok and value != float("inf") and not (but_not_low and value == low):
        return
    least = f"above {low:g}" if but_not_low else f"of at least {low:g}"
    most = "" if high == float("inf") else f" and at most {high:g}"
    raise UserError(f"{name} is {value!r}; give a finite number {least}{most}")


def _check_integer(name: str, value: Any, low: int, high: int | None = None, also: str = "") -> None:
    if not _is_integer(value) or value < low or (high is not None and value > high):
        most = "" if high is None else f" and at most {high}"
        raise UserError(f"{name} is {value!r}; give a whole number of at least {low}{most}{also}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
