"""The next token of each request from its logits (chapter 10), on the device, for rows of any mixture of parameters.

Random numbers are counter-based (Salmon et al., 2011): a draw depends on the seed, the index of the output token and
the token id, and on nothing else, so neither a neighbour in the batch nor a preemption changes it. A request needs
nothing but what its Request holds: params, prompt and output token ids, and how many are in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.engine.token_history import TokenHistory
from tiny_vllm.ops.argmax import Argmax
from tiny_vllm.ops.sampling import ROW, SamplingKernels
from tiny_vllm.sampling_params import MAX_LOGIT_BIASES, MAX_STOP_TOKEN_IDS
from tiny_vllm.types import Array, Request, SamplingParams

Bias = tuple[int, float]
LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)


class TokenSampler:
    """Draws for at most num_rows requests a step, of a model with this vocabulary and these end-of-sequence tokens.

    Launches: one where all rows are greedy and plain, one for plain temperatures, one more each for top-k, top-p and
    min-p, and for penalties, biases and min_tokens.
    """

    def __init__(
        self,
        device: Device,
        vocab_size: int,
        max_model_len: int,
        num_rows: int = 1,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        self.device, self.vocab_size = device, vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._argmax = Argmax(device)
        num_biases = num_rows * (MAX_LOGIT_BIASES + MAX_STOP_TOKEN_IDS + len(self._eos_token_ids))
        self._kernels = SamplingKernels(device, num_rows, vocab_size, num_biases, num_rows, max_model_len)
        self._history = TokenHistory(device, self._kernels.history)
        self._ids = device.zeros((num_rows,), np.int32)

    def sample(self, logits: Array, requests: list[Request]) -> list[int]:
        """logits (R,V) float32 on the device, which stay as they are -> the next token id of each of the R requests."""
        out = self._ids[: len(requests)]
        self.sample_ahead(logits, requests, out)
        return [int(token_id) for token_id in self.device.to_host(out)]

    def sample_ahead(self, logits: Array, requests: list[Request], out: Array) -> bool:
        """Launch the draw into out (R,) int32, on the device, and wait for nothing. Always True: it can be done.

        The token before may be in flight. Request.num_in_flight counts the token that is to be drawn as well, as the
        scheduler does; 0, where nobody counts, means 1.
        """
        with self.device.no_allocation():
            biases = [self._biases_of(request) for request in requests]
            if all(r.params.is_greedy and not r.params.has_penalties for r in requests) and not any(biases):
                self._argmax(logits, out=out)
            else:
                self._kernels(logits, self._rows(requests, biases), [b for each in biases for b in each], out)
        return True

    def reset(self) -> None:
        """Forget all requests."""
        self._history.reset()

    def _biases_of(self, request: Request) -> list[Bias]:
        """(token id, what is added to its logit), each id once; -inf for what may not come yet."""
        params = request.params
        if not params.logit_bias and not params.min_tokens:
            return []
        biases = dict(params.logit_bias or {})
        if _index(request) < params.min_tokens:
            ends = set(request.stop_token_ids) | set(params.stop_token_ids)
            ends |= set() if params.ignore_eos else self._eos_token_ids
            biases.update((token_id, float("-inf")) for token_id in ends if token_id < self.vocab_size)
        return list(biases.items())

    def _rows(self, requests: list[Request], biases: Sequence[list[Bias]]) -> np.ndarray:
        """How to draw from each row, as the kernels take it: (R,) ROW.

        By columns, and only for the rows that need more than a temperature by row: a step of hundreds of requests
        waits for this.
        """
        rows = np.zeros(len(requests), ROW)
        rows["slot"] = -1
        params = [request.params for request in requests]
        assert all(p.seed is not None or p.is_greedy for p in params), "a request that draws has a seed"
        seeds = np.array([p.seed or 0 for p in params], np.uint64)
        rows["temperature"] = [0 if p.is_greedy else min(p.temperature, LARGEST) for p in params]
        rows["seed_low"], rows["seed_high"] = seeds & np.uint64(0xFFFFFFFF), seeds >> np.uint64(32)
        rows["index"] = [_index(request) for request in requests]
        for r, each in enumerate(params):
            if not each.is_greedy and (each.top_k > 0 or each.top_p < 1 or each.min_p > 0):
                self._set_filters(rows[r], each)
        rows["num_biases"] = [len(mine) for mine in biases]
        rows["first_bias"] = np.cumsum(rows["num_biases"]) - rows["num_biases"]
        penalized = [r for r, each in enumerate(params) if each.has_penalties]
        for r, slot in zip(penalized, self._history.place([requests[r] for r in penalized])):
            _set_penalties(rows[r], requests[r], slot)
        rows["is_adjusted"] |= rows["num_biases"] > 0
        return rows

    def _set_filters(self, row: np.void, params: SamplingParams) -> None:
        row["is_filtered"] = 1
        row["top_k"] = min(params.top_k if params.top_k > 0 else self.vocab_size, self.vocab_size)
        row["top_p"], row["min_p"] = max(params.top_p, SMALLEST), params.min_p


def _set_penalties(row: np.void, request: Request, slot: int) -> None:
    params = request.params
    row["is_adjusted"] = 1
    row["repetition_penalty"] = min(max(params.repetition_penalty, SMALLEST), LARGEST)
    row["presence_penalty"], row["frequency_penalty"] = params.presence_penalty, params.frequency_penalty
    row["slot"], row["num_prompt"] = slot, len(request.prompt_token_ids)
    row["num_known"] = request.num_tokens
    row["num_tokens"] = request.num_tokens + max(request.num_in_flight - 1, 0)
    row["newest"] = (request.output_token_ids or request.prompt_token_ids)[-1]


def _index(request: Request) -> int:
    """The index in the answer of the token that is to be drawn."""
    return len(request.output_token_ids) + max(request.num_in_flight - 1, 0)
