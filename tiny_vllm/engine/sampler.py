"""The next token of each request from its logits (chapter 10): greedy, or a draw at a temperature.

Random numbers are counter-based (Salmon et al., 2011): a draw depends on the seed, the index of the output token and
the token id, and on nothing else, so neither a neighbour in the batch nor a restart changes it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.ops.argmax import Argmax
from tiny_vllm.types import Array, Logprob, Request


class TokenSampler:
    """Greedy choices by kernels/argmax.cu, so that 4 bytes a row cross the bus; draws on the host."""

    def __init__(self, device: Device, num_rows: int = 1) -> None:
        self.device = device
        self.argmax = Argmax(device)
        self.ids = device.zeros((num_rows,), np.int32)

    def sample(self, logits: Array, requests: list[Request]) -> list[int]:
        """logits (R,V) float32 on the device -> the next token id of each of the R requests."""
        if all(request.params.temperature == 0 for request in requests):
            return self._greedy(logits)
        return [choose(row, request) for row, request in zip(self.device.to_host(logits), requests, strict=True)]

    def _greedy(self, logits: Array) -> list[int]:
        ids = self.argmax(logits, out=self.ids[: len(logits)])
        return [int(token_id) for token_id in self.device.to_host(ids)]


def choose(row: np.ndarray, request: Request) -> int:
    """The next token id of a request from its logits, row (V,) float32."""
    params = request.params
    if params.temperature == 0:
        return int(row.argmax())
    assert params.seed is not None, "a request that draws has a seed: its own, or one drawn when it was made"
    return draw(row, params.temperature, params.seed, len(request.output_token_ids))


def draw(row: np.ndarray, temperature: float, seed: int, index: int) -> int:
    """A token id with probability softmax(row / temperature), by the Gumbel-max trick (Gumbel, 1954).

    The largest of logit / temperature + Gumbel noise is a sample of the softmax, and nothing needs to be summed.
    """
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to -inf, which is right
        scaled = (row.astype(np.float64) - row.max()) / temperature
    return int((scaled + gumbel(seed, index, len(row))).argmax())


def gumbel(seed: int, index: int, count: int) -> np.ndarray:
    """Gumbel noise of output token `index` for token ids 0 to count - 1: (count,) float64."""
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)  # a seed of any size, all its bits spread
    uniform = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, index, 0])).random(count)
    return -np.log(-np.log(np.maximum(uniform, np.finfo(np.float64).tiny)))


def logprobs_of(row: np.ndarray, chosen: int, count: int, decode: Callable[[int], str]) -> dict[int, Logprob]:
    """The `count` likeliest tokens and the chosen one, likeliest first: log-softmax of the logits, row (V,) float32."""
    row = row.astype(np.float64)
    normalizer = row.max() + np.log(np.exp(row - row.max()).sum())
    token_ids = likeliest(row, min(count, len(row)))
    if chosen not in token_ids:
        token_ids.append(chosen)
    return {i: Logprob(float(row[i] - normalizer), _rank(row, i), decode(i)) for i in token_ids}


def likeliest(row: np.ndarray, count: int) -> list[int]:
    """The ids of the `count` largest logits, largest first; the lowest id wins a tie."""
    if count == 0:
        return []
    candidates = np.flatnonzero(row >= np.partition(row, -count)[-count])
    return [int(i) for i in candidates[np.argsort(-row[candidates], kind="stable")][:count]]


def _rank(row: np.ndarray, token_id: int) -> int:
    larger, equal_before = (row > row[token_id]).sum(), (row[:token_id] == row[token_id]).sum()
    return 1 + int(larger) + int(equal_before)
