"""How a figure is taken, one formula for every contender.

A decode step is the time between a request's first token and its last: a whole call's seconds less those of the same
call with one token out, over the steps between them, so that no prefill is in it. Everything else is whole calls.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tiny_vllm.bench.table.contenders.base import Contender
from tiny_vllm.bench.table.rows import KINDS, TableRow
from tiny_vllm.bench.workload import TOP_ID

Clock = Callable[[], float]


@dataclass(frozen=True)
class Sample:
    """One measurement. seconds: of the whole call; first: of the call with one token out (decode alone);
    tokens: that came out; answer: tokens of each answer, which a slow contender shortens.
    """

    seconds: float
    first: float | None
    tokens: int
    answer: int


def warm_up(contender: Contender, row: TableRow, top_id: int = TOP_ID) -> None:
    """What the first measurement of a row must not pay for: its very calls, or of a slow contender a short one."""
    if contender.is_slow:
        short = TableRow("warm-up", "decode", min(row.requests, 8), min(row.input_len, 128), 2)
        _call(contender, short, top_id, 1, time.perf_counter)
    else:
        _call(contender, row, top_id, 1, time.perf_counter)
    if row.kind == "decode":
        _call(contender, replace(row, output_len=1), top_id, 2, time.perf_counter)


def sample(
    contender: Contender, row: TableRow, top_id: int = TOP_ID, seed: int = 0, clock: Clock = time.perf_counter
) -> Sample:
    """One measurement of a row; seed: of its prompts."""
    first = None
    if row.kind == "decode":
        first, _, _ = _call(contender, replace(row, output_len=1), top_id, 2 * seed + 101, clock)
    seconds, tokens, answer = _call(contender, row, top_id, 2 * seed + 100, clock)
    return Sample(seconds, first, tokens, answer)


def figure(row: TableRow, samples: Sequence[Sample]) -> float:
    """In the row's unit, of all samples: the median call, and of the calls with one token out the quickest."""
    seconds = statistics.median(each.seconds for each in samples)
    scale, answer = KINDS[row.kind].scale, samples[0].answer
    if row.kind == "decode":
        first = min(each.first for each in samples if each.first is not None)
        return scale * (seconds - first) / (answer - 1)
    if row.kind == "prefill":
        return row.requests * row.input_len / seconds
    return samples[0].tokens / seconds if row.kind == "nano-vllm" else scale * seconds


def each_figure(row: TableRow, samples: Sequence[Sample]) -> list[float]:
    """The figure of every sample by itself, for the spread."""
    firsts = [each.first for each in samples if each.first is not None]
    return [figure(row, [replace(each, first=min(firsts) if firsts else None)]) for each in samples]


def _call(contender: Contender, row: TableRow, top_id: int, seed: int, clock: Clock) -> tuple[float, int, int]:
    """(seconds, tokens out, tokens of the longest answer) of one blocking call."""
    work = row.workload(top_id, seed)
    lengths = _lengths(contender, row, work.output_lens)
    start = clock()
    tokens = contender.generate(work.prompts, lengths, KINDS[row.kind].temperature)
    seconds = clock() - start
    if tokens != sum(lengths):
        raise RuntimeError(f"{tokens} tokens came out, and {sum(lengths)} were asked for")
    return seconds, tokens, max(lengths)


def _lengths(contender: Contender, row: TableRow, wanted: list[int]) -> list[int]:
    """Of the answers: the row's own, or for a contender that shortens them one length for all."""
    longest = contender.longest_answer(row.kind)
    return wanted if longest is None else [min(longest, max(wanted))] * len(wanted)
