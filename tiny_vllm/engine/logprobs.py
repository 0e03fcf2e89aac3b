"""Log-probabilities that a caller asks for: the log-softmax of the model's logits, as vLLM's raw_logprobs.

They are computed on the device, whoever drew the tokens; temperature, penalties and filters do not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.ops.sampling import LogprobKernel
from tiny_vllm.sampling_params import MAX_LOGPROBS
from tiny_vllm.types import Array, Logprob

Decode = Callable[[int], "str | None"]


class Logprobs:
    """For at most num_rows rows at once; more go through in turns."""

    def __init__(self, device: Device, num_rows: int = 1) -> None:
        self._kernel = LogprobKernel(device, num_rows, MAX_LOGPROBS)

    def __call__(
        self, logits: Array, token_ids: Sequence[int], counts: Sequence[int | None], decode: Decode
    ) -> list[dict[int, Logprob]]:
        """logits (R,V) float32 on the device, the token that follows each row, how many of the likeliest are wanted.

        A dictionary for each row, empty where the count is None: the likeliest tokens first, and at the end the token
        itself unless it is among them. For a chunk of a prompt: the logits of its tokens at positions p, p + 1, ...,
        the tokens at p + 1, p + 2, ..., and prompt_logprobs for each count; nothing predicts token 0.
        """
        found: list[dict[int, Logprob]] = []
        for start in range(0, len(logits), self._kernel.num_rows):
            part = slice(start, start + self._kernel.num_rows)
            found += self._few(logits[part], list(token_ids[part]), counts[part], decode)
        return found

    def _few(
        self, logits: Array, token_ids: list[int], counts: Sequence[int | None], decode: Decode
    ) -> list[dict[int, Logprob]]:
        if all(count is None for count in counts):
            return [{} for _ in counts]
        numbers = [-1 if count is None else min(count, logits.shape[1]) for count in counts]
        ids, logprobs, ranks = self._kernel(logits, token_ids, numbers)
        return [_as_dict(*row, decode) for row in zip(ids, logprobs, ranks, numbers, strict=True)]


def _as_dict(ids: np.ndarray, logprobs: np.ndarray, rank: int, count: int, decode: Decode) -> dict[int, Logprob]:
    """One row of the kernel's results: the chosen token first, then the `count` likeliest."""
    if count < 0:
        return {}
    ranked = [(int(ids[i]), float(logprobs[i]), i) for i in range(1, count + 1)]
    chosen = (int(ids[0]), float(logprobs[0]), int(rank))
    return {token: Logprob(value, place, decode(token)) for token, value, place in [*ranked, chosen]}
