"""Plain data that every floor may use: no device, no model, no behaviour beyond checking itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tiny_vllm.sampling_params import SamplingParams

Array = Any  # numpy.ndarray on the emulator, cupy.ndarray on a GPU: the two share the methods used here


@dataclass(frozen=True)
class Logprob:
    """The log-probability of one token, its rank (1 is the likeliest) and its text, None without detokenize."""

    logprob: float
    rank: int
    decoded_token: str | None


@dataclass
class CompletionOutput:
    """One answer.

    finish_reason: "stop", "length", or None while it still grows. stop_reason: the stop text or the one of
    stop_token_ids that ended it; None for an end-of-sequence token.
    """

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class RequestOutput:
    """What a request has become: its prompt and its answers.

    prompt_logprobs: a dictionary for each token of the prompt, None for the first, which nothing predicts.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None


@dataclass
class Request:
    """A prompt on its way: tokens known so far, and how many of them are already in the KV cache.

    stop_token_ids: they end the answer like an end-of-sequence token, and ignore_eos does not touch them.
    skip_reading_prefix_cache: compute the whole prompt, for a request that wants something at each of its positions.
    What follows is the scheduler's: tokens that are computed or on their way to it, tokens drawn whose ids are not yet
    known, the blocks that hold them, a number that changes whenever those blocks are given up, and how many tokens,
    prompt and answer together, there may be.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    prompt: str | None = None
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    skip_reading_prefix_cache: bool = False
    num_in_flight: int = 0
    block_ids: list[int] = field(default_factory=list)
    epoch: int = -1
    max_num_tokens: int = 0
    num_cached_tokens: int = 0  # tokens of the prompt that another request had computed
    num_preemptions: int = 0
    finish_reason: str | None = None  # "stop", "length" or "abort"

    @property
    def token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.output_token_ids

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def tokens_between(self, start: int, end: int) -> list[int]:
        """token_ids[start:end], without building the whole list."""
        length = len(self.prompt_token_ids)
        if end <= length:
            return self.prompt_token_ids[start:end]
        return self.prompt_token_ids[start:end] + self.output_token_ids[max(start - length, 0) : max(end - length, 0)]


IN_FLIGHT = -1  # the id of a token that the step before draws: the runner takes it from the device


class ScheduledRequest(NamedTuple):
    """A request's part in a step: token_ids at positions start, start + 1, ...; IN_FLIGHT may be the last of them.

    is_sampled: the logits of the last token choose the next one; otherwise this is a chunk with more to come.
    new_block_ids: blocks that go into the request's block table from index first_new_block on; 0 starts a new table.
    """

    request_id: str
    epoch: int
    start: int
    token_ids: tuple[int, ...]
    is_sampled: bool
    first_new_block: int
    new_block_ids: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True)
class StepPlan:
    """What one step computes: for each request, how many tokens that are not yet in its cache, and all about them."""

    num_scheduled_tokens: dict[str, int]
    requests: tuple[ScheduledRequest, ...] = ()


@dataclass
class StepMeta:
    """Where the T tokens of a step stand, for R requests one after another (vLLM's names; int32 on the device).

    positions       (T,)    position of each token in its request
    slot_mapping    (T,)    block * block_size + offset where its key and value go; -1: nowhere
    query_start_loc (R+1,)  request r owns rows query_start_loc[r] to query_start_loc[r+1]
    seq_lens        (R,)    keys that request r attends to, this step's tokens included; 0: a padded row
    block_table     (R,W)   the blocks of each request, in order
    logits_indices  (L,)    the rows whose logits are wanted
    query_lens_host, seq_lens_host: the same lengths as plain ints, for launchers that size their grids by them.
    last: the last row of each request as a step of R tokens, whose logits_indices are those rows among the T; given
        where nobody reads what becomes of the others. Its slots are of no use: keys and values are the T tokens'.
    """

    positions: Array
    slot_mapping: Array
    query_start_loc: Array
    seq_lens: Array
    block_table: Array
    logits_indices: Array
    query_lens_host: list[int]
    seq_lens_host: list[int]
    last: StepMeta | None = None

    @property
    def max_query_len(self) -> int:
        return max(self.query_lens_host, default=0)

    @property
    def max_seq_len(self) -> int:
        return max(self.seq_lens_host, default=0)


@dataclass
class KVCache:
    """Keys and values of all layers, by block.

    layers: one array a layer, [num_blocks, num_kv_heads, 2, block_size, head_dim]; [:, :, 0] keys, [:, :, 1] values.
    A contiguous cache is the same thing with one block a request.
    """

    layers: list[Array]
    block_size: int

    @property
    def num_blocks(self) -> int:
        return int(self.layers[0].shape[0])


class Scheduler(Protocol):
    """Decides what a step computes (chapters 12 and 15; a student's can stand in)."""

    def add(self, request: Request) -> None: ...
    def abort(self, request_id: str) -> None: ...
    def schedule(self) -> StepPlan: ...
    def update(self, plan: StepPlan, token_ids: dict[str, int]) -> list[Request]: ...


class BlockPool(Protocol):
    """Hands out the blocks of the KV cache (chapter 14; a student's can stand in)."""

    @property
    def block_size(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    def allocate(self, count: int) -> list[int]: ...
    def free(self, blocks: list[int]) -> None: ...


@runtime_checkable
class PrefixCache(Protocol):
    """What a block pool has besides if requests may share blocks that begin alike (chapter 15)."""

    def lookup(self, token_ids: list[int]) -> list[int]: ...
    def num_free_beside(self, blocks: list[int]) -> int: ...
    def share(self, blocks: list[int]) -> None: ...
    def cache(self, blocks: list[int], index: int, token_ids: list[int]) -> None: ...


@runtime_checkable
class Resettable(Protocol):
    """What a scheduler, block pool or sampler has besides if an error in the middle of a step need not be its end."""

    def reset(self) -> None: ...


class Sampler(Protocol):
    """Draws the next token of each request from its float32 logits (chapter 10; a student's can stand in)."""

    def sample(self, logits: Array, requests: list[Request]) -> list[int]: ...
