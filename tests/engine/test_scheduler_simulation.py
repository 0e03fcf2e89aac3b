"""Scheduler and pool under random load: a small draw always, 200,000 steps with `-m deep`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.simulation import run_episode

MUST_HAPPEN = (
    *("abort waiting", "abort half prefilled", "abort running", "abort in flight", "abort preempted"),
    *("abort unknown or ended", "abort twice"),
    *("chunk", "dropped", "length", "stop", "preempted", "prefix hit", "refused", "resumed"),
)


def run(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += run_episode(seed)
        except Exception as error:
            error.args = (f"{error}, in run_episode({seed})",)
            raise
    return seen


@pytest.mark.parametrize("part", range(4))
def test_a_draw(part):
    seen = run(range(100 * part, 100 * (part + 1)))
    assert [name for name in MUST_HAPPEN if seen[name] < 10] == []


@pytest.mark.deep
def test_200_000_steps(capsys):
    seen: Counter[str] = Counter()
    first = 1000
    while seen["steps"] < 200_000:
        seen += run(range(first, first + 50))
        first += 50
    with capsys.disabled():
        print("\nsimulated:", ", ".join(f"{count:,} {name}" for name, count in sorted(seen.items())))
    assert [name for name in MUST_HAPPEN if seen[name] < 100] == []
