"""paged_decode.cu and both prefills, on the emulator through the twins of their instructions.

What an element may be off by: weights are rounded to 16 bits before they meet the values, so twice half a unit of the
type times the largest value of the request, and half a unit of the result. Over a whole step the errors are random, and
their root mean square is smaller by far: that holds a lost key, which one element would hide.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.ops.cases import DTYPES, Shape, poisoned, random, step_meta
from tests.ops.test_attention import STEPS, Case, make_case
from tiny_vllm.device.emulator import Emulator
from tiny_vllm.device.source import load_source, runs_on
from tiny_vllm.ops import paged_attention
from tiny_vllm.ops.paged_attention import BLOCKS, DECODE, PREFILL, WGMMA
from tiny_vllm.ops.tuned import TunedOps
from tiny_vllm.reference.ops import attention_rows

UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # half a unit in the last place, of 1.0
# Query heads a key/value head: heads, kv_heads
GROUPS = {1: (2, 2), 3: (6, 2), 4: (4, 1), 5: (5, 1), 6: (12, 2), 7: (7, 1), 8: (16, 2)}


@pytest.fixture(params=["bfloat16", "float16"])
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    return DTYPES[request.param]


@cache
def build(device: Any, shape: Shape, dtype: np.dtype, prefill: str) -> TunedOps:
    ops = TunedOps(device, shape, dtype, attention="mma.sync" if prefill == PREFILL else "paged")
    ops.reserve(1, 1, 1)
    return ops


@pytest.fixture(params=[PREFILL, WGMMA])
def prefill(request: pytest.FixtureRequest, device: Any) -> str:
    """The name of a prefill kernel; skipped on a GPU that cannot run it."""
    if not runs_on(load_source(f"{request.param}.cu"), device.compute_capability):
        pytest.skip(f"{request.param}.cu does not run on sm_{device.compute_capability}")
    return request.param


@pytest.fixture
def make(device: Any, dtype: np.dtype, prefill: str):
    """make(head_dim, group): the tuned set with these kernels."""

    def make(head_dim: int, group: int = 3) -> TunedOps:
        heads, kv_heads = GROUPS[group]
        return build(device, Shape(heads, kv_heads, head_dim), dtype, prefill)

    return make


DECODE_ALONE = pytest.mark.parametrize("prefill", [PREFILL], indirect=True)


def run(ops: TunedOps, case: Case) -> np.ndarray:
    """What comes out, and that nothing is allocated for it."""
    device = ops.device
    q, kv, out = device.asarray(case.q), device.asarray(case.kv), poisoned(device, case.expected.shape, case.q.dtype)
    with device.no_allocation():
        assert ops.attention(q[:, : case.columns], kv, case.meta, out=out) is out
    return device.to_host(out)


def check(got: np.ndarray, case: Case) -> None:
    unit, got = UNIT[got.dtype.name], got.astype(np.float32)
    largest = np.nanmax(np.abs(case.kv[:, :, 1].astype(np.float32)), initial=0)
    np.testing.assert_allclose(got, case.expected, rtol=2 * unit, atol=1.1 * unit * largest)
    size = np.sqrt(np.mean(np.square(case.expected, dtype=np.float64)))
    assert np.sqrt(np.mean(np.square(got - case.expected, dtype=np.float64))) <= 0.65 * unit * size
    np.testing.assert_array_equal(got[~case.expected.any(axis=1)], 0)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("lengths", STEPS.values(), ids=STEPS)
def test_steps(lengths, head_dim, make, device, dtype, rng):
    ops = make(head_dim)
    case = make_case(device, rng, ops.config, dtype, lengths)
    check(run(ops, case), case)


@pytest.mark.parametrize("group", GROUPS)
def test_groups(group, make, device, dtype, rng):
    ops = make(64, group)
    case = make_case(device, rng, ops.config, dtype, [(1, 45), (50, 90), (1, 17), (3, 3), (40, 40)])
    check(run(ops, case), case)


@DECODE_ALONE
@pytest.mark.parametrize("group", GROUPS)
def test_decode_at_every_boundary(group, make, device, dtype, rng):
    ops = make(64, group)
    lengths = [n + d for n in (16, 32, 64, 128, 256) for d in (-1, 0, 1)]
    case = make_case(device, rng, ops.config, dtype, [(1, n) for n in (0, 1, 2, *lengths, 0)])
    check(run(ops, case), case)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", [1, 3, 4, 7])
def test_prefill_at_every_boundary(group, head_dim, prefill, make, device, dtype, rng):
    """Chunks that begin and end beside the tokens of a block and the keys of a tile."""
    ops, block = make(head_dim, group), BLOCKS[prefill, head_dim]
    tokens, keys = block.rows // group, block.keys
    for chunk in (tokens - 1, tokens, tokens + 1):
        contexts = [0, 1, 15, *(keys - 2 + d for d in range(3)), *(keys - 2 + d - tokens % keys for d in range(3))]
        case = make_case(device, rng, ops.config, dtype, [(max(chunk, 2), max(chunk, 2) + max(c, 0)) for c in contexts])
        check(run(ops, case), case)


def test_numbers_behind_a_request_s_blocks_are_not_looked_at(make, device, dtype, rng):
    ops = make(64)
    lengths = [(1, 16), (33, 33), (2, 130), (1, 0), (1, 129), (64, 128), (3, 0)]
    case = make_case(device, rng, ops.config, dtype, lengths)
    table = device.to_host(case.meta.block_table)
    wide = np.resize(np.array([-1, 2**31 - 1], np.int32), (len(table), table.shape[1] + 5))
    for r, (_, length) in enumerate(lengths):
        wide[r, : -(-length // 16)] = table[r, : -(-length // 16)]
    case.meta = replace(case.meta, block_table=device.asarray(wide))
    check(run(ops, case), case)


def test_random_steps(make, device, dtype, rng):
    """Lone tokens, chunks, requests with nothing to do and padded ones, in any order."""
    ops = make(64)
    for _ in range(6):
        lengths = []
        for _ in range(rng.integers(1, 12)):
            new = int(rng.choice([0, 1, 1, rng.integers(2, 60)]))
            lengths.append((new, 0 if rng.random() < 0.1 else new + int(rng.integers(0, 150))))
        case = make_case(device, rng, ops.config, dtype, [*lengths, (1, 5)])
        check(run(ops, case), case)


@DECODE_ALONE
@pytest.mark.parametrize("splits", [1, 2, 5, 16])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_splits(head_dim, splits, make, device, dtype, rng, monkeypatch):
    """Contexts that leave splits and warps empty, or have several pages for each; twice, by the same counters."""
    ops = make(head_dim, 4)
    for warps in (1, 2, 8):
        monkeypatch.setattr(paged_attention, "plan_decode", lambda *args, warps=warps: (warps, splits))
        case = make_case(device, rng, ops.config, dtype, [(1, n) for n in (0, 1, 16, 17, 130, 600, 257, 0)])
        first = run(ops, case)
        check(first, case)
        np.testing.assert_array_equal(run(ops, case), first)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_long_contexts(head_dim, make, device, dtype, rng):
    """A warp has more than the 32 pages that it looks up together."""
    ops = make(head_dim, 1)
    decode = make_case(device, rng, ops.config, dtype, [(1, 3001), (1, 2048), (1, 40)])
    check(run(ops, decode), decode)
    chunk = make_case(device, rng, ops.config, dtype, [(5, 2500)])
    check(run(ops, chunk), chunk)


@DECODE_ALONE
def test_a_warp_with_very_many_pages(make, device, dtype, rng, monkeypatch):
    monkeypatch.setattr(paged_attention, "plan_decode", lambda *args: (1, 1))
    ops = make(64, 1)
    case = make_case(device, rng, ops.config, dtype, [(1, 16 * 70 + 3)])
    check(run(ops, case), case)


# ---- scores far from zero: every way to overflow


def hot_case(
    ops: TunedOps,
    rng: np.random.Generator,
    lengths: list[tuple[int, int]],
    rise: float,
    start: float = 0,
    rows: slice = slice(None),
) -> Case:
    """Scores that rise, or fall, with the position, from about `start` at the first key by `rise` to the last.

    rows: of q, those whose scores do so; the others' stay about zero.
    """
    case = make_case(ops.device, rng, ops.config, ops.dtype, lengths)
    shape, row = ops.config, 0
    heads, kv_heads, dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
    tables = ops.device.to_host(case.meta.block_table)
    case.q[:, ::dim] = 0
    case.q[rows, ::dim] = 8  # the first dimension of each head carries the rise
    for (new, length), table in zip(lengths, tables, strict=True):
        position = np.arange(length)
        for p in position:
            case.kv[table[p // 16], :, 0, p % 16, 0] = (start + rise * p / length) * dim**0.5 / 8
        blocks = [case.kv[b] for b in table[: -(-length // 16)]]
        k, v = (np.concatenate([b[:, i].swapaxes(0, 1) for b in blocks])[:length] for i in (0, 1))
        mine = case.q[row : row + new, : case.columns].reshape(new, heads, dim)
        assert k.shape[1] == kv_heads
        case.expected[row : row + new] = attention_rows(mine, k, v).reshape(new, -1)
        row += new
    return case


@pytest.mark.parametrize("rise", [30.0, 300.0, -300.0])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_scores_that_rise_and_fall(rise, head_dim, make, rng, monkeypatch):
    """30: a half overflows without the second walk; 300: a float does. Decode: a warp's maximum moves at every page."""
    monkeypatch.setattr(paged_attention, "plan_decode", lambda *args: (2, 1))
    ops = make(head_dim)
    case = hot_case(ops, rng, [(1, 200), (70, 150), (1, 17), (3, 400), (20, 20)], rise)
    got = run(ops, case)
    unit = UNIT[got.dtype.name]
    largest = np.nanmax(np.abs(case.kv[:, :, 1].astype(np.float32)))
    np.testing.assert_allclose(got.astype(np.float32), case.expected, rtol=2 * unit, atol=1.1 * unit * largest)


@pytest.mark.parametrize("start", [60.0, -60.0, 200.0, -200.0])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_scores_that_are_all_far_from_zero(start, head_dim, make, rng):
    """60: weights relative to 0 are in range still, in bfloat16; 200: without a reference all are infinite, or none."""
    ops = make(head_dim)
    case = hot_case(ops, rng, [(1, 200), (70, 150), (20, 20), (3, 3)], 5.0, start)
    got = run(ops, case)
    unit = UNIT[got.dtype.name]
    largest = np.nanmax(np.abs(case.kv[:, :, 1].astype(np.float32)))
    np.testing.assert_allclose(got.astype(np.float32), case.expected, rtol=2 * unit, atol=1.1 * unit * largest)


@pytest.mark.parametrize("start", [200.0, -200.0])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_one_token_makes_its_block_walk_again(start, head_dim, make, rng):
    """And the rows beside it come out as they would without it."""
    ops = make(head_dim)
    case = hot_case(ops, rng, [(70, 150), (1, 30), (20, 20)], 5.0, start, slice(33, 34))
    got = run(ops, case)
    unit = UNIT[got.dtype.name]
    largest = np.nanmax(np.abs(case.kv[:, :, 1].astype(np.float32)))
    np.testing.assert_allclose(got.astype(np.float32), case.expected, rtol=2 * unit, atol=1.1 * unit * largest)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("name", [PREFILL, WGMMA])
def test_check_mode_finds_nothing(name, order, device, dtype, rng, monkeypatch):
    """In one walk, and in two."""
    if device.name != "emulator":
        pytest.skip("a GPU does not watch its kernels")
    monkeypatch.setenv("TINY_VLLM_CHECK", "1")
    monkeypatch.setenv("TINY_VLLM_THREAD_ORDER", order)
    ops = TunedOps(Emulator(), Shape(3, 1, 64), dtype, attention="mma.sync" if name == PREFILL else "paged")
    ops.reserve(1, 1, 1)
    for rise in (1.0, 300.0):
        assert np.isfinite(run(ops, hot_case(ops, rng, [(50, 150), (1, 40), (3, 20)], rise)).astype(np.float32)).all()


def test_huge_queries(make, device, dtype, rng):
    """Scores around +-1,000: a mean of values all the same."""
    ops = make(64)
    case = make_case(device, rng, ops.config, dtype, [(1, 600), (40, 60), (1, 40)])
    case.q *= np.asarray(100, dtype)
    got = run(ops, case).astype(np.float32)
    assert np.isfinite(got).all()
    assert 0 < np.abs(got).max() <= np.nanmax(np.abs(case.kv.astype(np.float32)))


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_scales_of_values(scale, make, device, dtype, rng):
    ops = make(64)
    case = make_case(device, rng, ops.config, dtype, [(1, 45), (50, 90)], scale=scale)
    got = run(ops, case).astype(np.float32)
    np.testing.assert_allclose(got, case.expected, rtol=0.05, atol=4 * UNIT[dtype.name] * scale)


def test_a_nan_stays_in_its_row(make, device, dtype, rng):
    """And is not taken for a row without keys."""
    ops = make(64)
    case = make_case(device, rng, ops.config, dtype, [(1, 20), (1, 20), (40, 40)])
    case.q[[1, 10]] = np.nan
    got, others = run(ops, case), np.delete(np.arange(42), [1, 10])
    assert np.isnan(got[[1, 10]].astype(np.float32)).all()
    case.expected = case.expected[others]
    check(got[others], case)


# ---- rows that nobody owns, steps of both kinds, captured launches


@pytest.mark.parametrize("lengths", [[(1, 9), (1, 3)], [(2, 9), (1, 3)], [(30, 30)], [(0, 9), (0, 0)]])
def test_rows_that_nobody_owns_are_zeros(lengths, make, device, dtype, rng):
    ops = make(64)
    case = make_case(device, rng, ops.config, dtype, lengths)
    extra = random(rng, (75, case.q.shape[1]), dtype)
    case.q = np.concatenate([case.q, extra])
    case.expected = np.concatenate([case.expected, np.zeros((75, case.columns), np.float32)])
    got = run(ops, case).astype(np.float32)
    np.testing.assert_array_equal(got[-75:], 0)
    assert np.isfinite(got).all() and (got[:-75].any() or not len(got[:-75]))


def test_more_new_tokens_than_keys(make, device, dtype, rng):
    """Rows before the first key see nothing: zeros, as attention.cu gives."""
    ops = make(64)
    case = make_case(device, rng, ops.config, dtype, [(3, 3), (40, 40)])
    rows = np.concatenate([np.full(5, np.nan, np.float32)[:, None] + case.q[:5].astype(np.float32), case.q])
    case.q = rows.astype(dtype)
    case.meta = step_meta(device, [8, 40], [3, 40], device.to_host(case.meta.block_table).tolist(), 16)
    case.expected = np.concatenate([np.zeros((5, case.columns), np.float32), case.expected])
    check(run(ops, case), case)


class Spy:
    """Counts the launches of a kernel."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.launches = kernel, 0

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.launches += 1
        self.kernel(*args, **kwargs)


@pytest.mark.parametrize(
    ("lengths", "launches"),
    [
        ([(1, 9)], (1, 0)),
        ([(1, 9), (0, 4)], (1, 0)),
        ([(5, 9)], (0, 1)),
        ([(5, 9), (1, 2)], (1, 1)),
        ([(5, 9), (0, 2)], (1, 1)),
    ],
)
def test_a_step_launches_what_it_needs(lengths, launches, prefill, make, device, dtype, rng):
    ops = make(64)
    case, paged = make_case(device, rng, ops.config, dtype, lengths), ops._paged
    assert paged is not None
    real = dict(paged._kernels)
    spies = {name: Spy(kernel) for name, kernel in real.items()}
    paged._kernels.update(spies)
    try:
        check(run(ops, case), case)
    finally:
        paged._kernels.update(real)
    assert (spies[DECODE].launches, spies[prefill].launches) == launches


def test_each_kernel_leaves_the_others_rows_alone(prefill, make, device, dtype, rng):
    ops = make(64)
    case, paged = make_case(device, rng, ops.config, dtype, [(1, 9), (20, 30), (1, 40), (2, 5)]), ops._paged
    assert paged is not None
    lone = np.array([0, 21])
    for other, mine in ((prefill, lone), (DECODE, np.delete(np.arange(24), lone))):
        real = paged._kernels[other]
        paged._kernels[other] = lambda *args, **kwargs: None
        try:
            got = run(ops, case).astype(np.float32)
        finally:
            paged._kernels[other] = real
        assert np.isfinite(got[mine]).all() and np.isnan(np.delete(got, mine, axis=0)).all()


CAPTURED = {
    "decode": ([(1, 50)] * 4, [[(1, 1), (1, 64), (0, 9), (1, 0)], [(1, 17), (1, 5), (1, 33), (1, 64)]]),
    "mixed": (
        [(2, 9), (1, 9), (1, 3)],
        [[(1, 30), (1, 2), (2, 2)], [(4, 40), (0, 0), (0, 3)], [(0, 0), (1, 9), (1, 1)]],
    ),
}


@pytest.mark.parametrize(("captured", "steps"), CAPTURED.values(), ids=CAPTURED)
def test_a_captured_step_is_right_for_others_of_its_size(captured, steps, make, device, dtype, rng):
    """Grids come from the numbers of tokens and requests; who has how many tokens is found out on the device."""
    ops, width, rows = make(64), 4, sum(new for new, _ in captured)
    cases = [make_case(device, rng, ops.config, dtype, step) for step in steps]
    columns, blocks = cases[0].columns, max(len(case.kv) for case in cases)
    q = device.asarray(np.zeros((rows, columns), dtype))
    kv = device.asarray(np.zeros((blocks, *cases[0].kv.shape[1:]), dtype))
    out = poisoned(device, (rows, columns), dtype)
    new, lengths = [new for new, _ in captured], [length for _, length in captured]
    meta = step_meta(device, new, lengths, [[0] * width for _ in captured], 16)
    with device.capture() as graph:
        ops.attention(q, kv, meta, out=out)
    for case in cases:
        fill = np.full((rows, columns), np.nan, np.float32).astype(dtype)
        fill[: len(case.q)] = case.q[:, :columns]
        cache, table = np.full(kv.shape, np.nan).astype(dtype), np.full((len(captured), width), blocks - 1, np.int32)
        cache[: len(case.kv)] = case.kv
        mine = device.to_host(case.meta.block_table)
        table[:, : mine.shape[1]] = mine
        device.copy_in(q, fill), device.copy_in(kv, cache), device.copy_in(meta.block_table, table)
        device.copy_in(meta.query_start_loc, device.to_host(case.meta.query_start_loc))
        device.copy_in(meta.seq_lens, device.to_host(case.meta.seq_lens))
        device.copy_in(out, np.full(out.shape, np.nan, np.float32).astype(dtype))
        graph.launch()
        got, owned = device.to_host(out), len(case.q)
        check(got[:owned], case)
        np.testing.assert_array_equal(got[owned:].astype(np.float32), 0)


# ---- sizes


def test_offsets_past_2_to_the_31(make, device, dtype, rng):
    """The last blocks of a cache of 2^31 + 8,192 elements, of which the emulator touches a few pages."""
    ops = make(64, 4)
    blocks = 2**31 // (2 * 16 * 64) + 4
    if device.name == "cuda" and device.memory_info()[0] < 6 * 2**30:
        pytest.skip("needs 6 GB of free GPU memory")
    size = (blocks, 1, 2, 16, 64)
    kv = np.empty(size, dtype) if device.name == "emulator" else device.empty(size, dtype)
    tables = [[blocks - 1, blocks - 2], [blocks - 3]]
    meta = step_meta(device, [20, 1], [20, 1], tables, 16)
    q, k, v = (random(rng, (21, width), dtype) for width in (256, 64, 64))
    ops.write_kv(device.asarray(k), device.asarray(v), kv, meta.slot_mapping)
    got = device.to_host(ops.attention(device.asarray(q), kv, meta)).astype(np.float32)
    for rows in (slice(0, 20), slice(20, 21)):
        expected = attention_rows(*(x[rows].reshape(-1, x.shape[1] // 64, 64) for x in (q, k, v)))
        np.testing.assert_allclose(got[rows], expected.reshape(-1, 256), rtol=0.02, atol=4 * UNIT[dtype.name])


def test_70_000_requests(device, rng, monkeypatch):
    """More than a grid may have in y or z. One key each: the answer is its value."""
    if device.name == "emulator":
        monkeypatch.setattr(paged_attention, "plan_decode", lambda *args: (1, 1))  # eight warps take long
    elif device.compute_capability < 80:
        pytest.skip("needs sm_80")
    dtype, count = DTYPES["float16"], 70_000
    ops = build(device, Shape(1, 1, 64), dtype, PREFILL)
    kv, table = np.full((999, 1, 2, 16, 64), np.nan, dtype), rng.integers(0, 999, count)
    kv[:, :, :, 0] = random(rng, (999, 1, 2, 64), dtype)
    meta = step_meta(device, [1] * count, [1] * count, [[int(b)] for b in table], 16)
    out = ops.attention(device.asarray(random(rng, (count, 64), dtype)), device.asarray(kv), meta)
    np.testing.assert_allclose(device.to_host(out), kv[table, 0, 1, 0], rtol=1e-3)
