"""How to draw from each row of a batch, as the sampling kernels take it."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np

from tiny_vllm.ops.sampling import ROW
from tiny_vllm.types import Request, SamplingParams

LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Batch:
    """What the parameters of some requests say, whichever token is drawn.

    rows: (R,) ROW with temperatures, seeds and filters. penalized, biased: places of the requests that have penalties,
    and of those with a logit_bias or min_tokens.
    """

    requests: list[Request]
    rows: np.ndarray
    penalized: list[int]
    biased: list[int]
    is_greedy: bool  # all of them, and nothing changes their logits

    @staticmethod
    def of(requests: list[Request], vocab_size: int) -> Batch:
        params = [request.params for request in requests]
        assert all(p.seed is not None or p.is_greedy for p in params), "a request that draws has a seed"
        rows = np.zeros(len(params), ROW)
        rows["slot"] = -1
        seeds = np.array([p.seed or 0 for p in params], np.uint64)
        rows["temperature"] = [0 if p.is_greedy else min(p.temperature, LARGEST) for p in params]
        rows["seed_low"], rows["seed_high"] = seeds & np.uint64(0xFFFFFFFF), seeds >> np.uint64(32)
        for r, each in enumerate(params):
            if not each.is_greedy and (each.top_k > 0 or each.top_p < 1 or each.min_p > 0):
                _set_filters(rows[r], each, vocab_size)
        penalized = [r for r, each in enumerate(params) if each.has_penalties]
        biased = [r for r, each in enumerate(params) if each.logit_bias or each.min_tokens]
        is_greedy = not penalized and not biased and all(each.is_greedy for each in params)
        return Batch(list(requests), rows, penalized, biased, is_greedy)

    def is_of(self, requests: list[Request]) -> bool:
        """Whether these are the very requests, in this order."""
        return len(requests) == len(self.requests) and all(map(operator.is_, requests, self.requests))

    def rows_now(self) -> np.ndarray:
        """A copy of the rows with the index of the token that each request draws now."""
        rows = self.rows.copy()
        rows["index"] = [index_of(request) for request in self.requests]
        return rows


def index_of(request: Request) -> int:
    """The index in the answer of the token that is to be drawn."""
    return len(request.output_token_ids) + max(request.num_in_flight - 1, 0)


def set_penalties(row: np.void, request: Request, slot: int) -> None:
    """Its penalties, and how much of its history is where; slot: its row of the token history."""
    params = request.params
    row["is_adjusted"] = 1
    row["repetition_penalty"] = min(max(params.repetition_penalty, SMALLEST), LARGEST)
    row["presence_penalty"], row["frequency_penalty"] = params.presence_penalty, params.frequency_penalty
    row["slot"], row["num_prompt"] = slot, len(request.prompt_token_ids)
    row["num_known"] = request.num_tokens
    row["num_tokens"] = request.num_tokens + max(request.num_in_flight - 1, 0)
    row["newest"] = (request.output_token_ids or request.prompt_token_ids)[-1]


def _set_filters(row: np.void, params: SamplingParams, vocab_size: int) -> None:
    row["is_filtered"] = 1
    row["top_k"] = min(params.top_k if params.top_k > 0 else vocab_size, vocab_size)
    row["top_p"], row["min_p"] = max(params.top_p, SMALLEST), params.min_p
