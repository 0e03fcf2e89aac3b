"""The next token of each request from its logits (chapter 10), on the device, for rows of any mixture of parameters.

Random numbers are counter-based (Salmon et al., 2011): a draw depends on the seed, the index of the output token and
the token id, and on nothing else, so neither a neighbour in the batch nor a preemption changes it. A request needs
nothing but what its Request holds: params, prompt and output token ids, and how many are in flight.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.engine.sampling_rows import Batch, index_of, set_penalties
from tiny_vllm.engine.token_history import TokenHistory
from tiny_vllm.ops.argmax import Argmax
from tiny_vllm.ops.sampling import SamplingKernels
from tiny_vllm.sampling_params import MAX_LOGIT_BIASES, MAX_STOP_TOKEN_IDS
from tiny_vllm.types import Array, Request

Bias = tuple[int, float]


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
        self._batch = Batch.of([], vocab_size)  # of the step before: mostly the next one's too

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
        if not self._batch.is_of(requests):
            self._batch = Batch.of(requests, self.vocab_size)
        with self.device.no_allocation():
            if self._batch.is_greedy:
                self._argmax(logits, out=out)
            else:
                rows = self._batch.rows_now()
                self._penalize(rows)
                self._kernels(logits, rows, self._bias(rows), out)
        return True

    def reset(self) -> None:
        """Forget all requests."""
        self._history.reset()
        self._batch = Batch.of([], self.vocab_size)

    def _penalize(self, rows: np.ndarray) -> None:
        """Set the penalties of the rows that have some."""
        penalized = [self._batch.requests[r] for r in self._batch.penalized]
        for r, request, slot in zip(self._batch.penalized, penalized, self._history.place(penalized)):
            set_penalties(rows[r], request, slot)

    def _bias(self, rows: np.ndarray) -> list[Bias]:
        """The biases of all rows, one behind the other, and in each row which are its own."""
        found: list[Bias] = []
        for r in self._batch.biased:
            mine = self._biases_of(self._batch.requests[r])
            rows[r]["first_bias"], rows[r]["num_biases"] = len(found), len(mine)
            rows[r]["is_adjusted"] |= len(mine) > 0
            found += mine
        return found

    def _biases_of(self, request: Request) -> list[Bias]:
        """(token id, what is added to its logit), each id once; -inf for what may not come yet."""
        params = request.params
        biases = dict(params.logit_bias or {})
        if index_of(request) < params.min_tokens:
            ends = set(request.stop_token_ids) | set(params.stop_token_ids)
            ends |= set() if params.ignore_eos else self._eos_token_ids
            biases.update((token_id, float("-inf")) for token_id in ends if token_id < self.vocab_size)
        return list(biases.items())
