"""Sampling in NumPy, float64, a few lines a step: what kernels/sampling_*.cu are compared with.

A row is the logits (V,) of one request. Filters sort here, which the kernels do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tiny_vllm.types import SamplingParams


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10 (Salmon et al., 2011): counter (N,4), two key words -> (N,4) random words, all below 2^32."""
    c0, c1, c2, c3 = counter.astype(np.uint64).T
    low, high = (np.uint64(word) for word in key)
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (b >> shift) ^ c1 ^ low, b & mask, (a >> shift) ^ c3 ^ high, a & mask
        low, high = (low + np.uint64(0x9E3779B9)) & mask, (high + np.uint64(0xBB67AE85)) & mask
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def gumbel(seed: int, index: int, count: int) -> np.ndarray:
    """The noise of output token `index` for token ids 0 to count - 1: (count,) float64."""
    counter = np.zeros((-(-count // 4), 4), np.uint32)
    counter[:, 0], counter[:, 1] = np.arange(len(counter)), index
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32)).ravel()[:count]
    return -np.log(-np.log1p(-(words + 0.5) / 2.0**32))


def adjust(
    row: np.ndarray, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], masked: Iterable[int] = ()
) -> np.ndarray:
    """The row after min_tokens (which masks ids), logit_bias and the penalties."""
    row = row.astype(np.float64)
    row[list(masked)] = -np.inf
    for token_id, bias in (params.logit_bias or {}).items():
        row[token_id] += bias
    for token_id in {*prompt, *output}:
        p = params.repetition_penalty
        row[token_id] = row[token_id] / p if row[token_id] > 0 else row[token_id] * p
    for token_id in set(output):
        row[token_id] -= params.frequency_penalty * list(output).count(token_id) + params.presence_penalty
    return row


def order(row: np.ndarray) -> np.ndarray:
    """The ids by logit, the largest first, of equal ones the lowest first, NaN last."""
    return np.argsort(-np.where(np.isnan(row), -np.inf, row), kind="stable")


def probabilities(row: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """softmax(row / temperature), (V,) float64."""
    weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    return weights / weights.sum()


def keep(row: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Which tokens min_p, top_k and top_p leave, in this order: (V,) bool."""
    ids = order(row)
    p = probabilities(row, params.temperature)[ids]
    stays = p >= params.min_p * p[0]
    if params.top_k > 0:
        stays[params.top_k :] = False
    p = np.where(stays, p, 0) / p[stays].sum()
    if params.top_p < 1:
        stays &= np.cumsum(p) - p < params.top_p  # what comes before has not reached the share yet
    kept = np.zeros(len(row), bool)
    kept[ids[stays]] = True
    return kept


def draw(row: np.ndarray, params: SamplingParams, index: int) -> int:
    """The next token id from an adjusted row: the first in order, or a draw by the Gumbel-max trick."""
    if params.is_greedy:
        return int(order(row)[0])
    assert params.seed is not None
    noisy = row / params.temperature + gumbel(params.seed, index, len(row))
    return int(np.argmax(np.where(keep(row, params), noisy, -np.inf)))


def log_softmax(row: np.ndarray) -> np.ndarray:
    """(V,) float64."""
    row = row.astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())
