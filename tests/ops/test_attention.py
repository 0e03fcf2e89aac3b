"""attention over a paged cache: block tables in no order, NaN in every place that a request does not own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.ops.cases import DTYPES, SETS, Shape, assert_close, poisoned, random, step_meta
from tiny_vllm.device.base import Device
from tiny_vllm.ops.base import Ops
from tiny_vllm.reference.ops import attention_rows
from tiny_vllm.types import Array, StepMeta

B = 16
DECODE = [(1, n) for n in (1, B - 1, B, B + 1, 2 * B, 2 * B + 13)]  # (query_len, seq_len)
STEPS = {
    "decode": DECODE,
    "prefill": [(1, 1), (33, 33), (B, B), (7, 7)],
    "chunks": [(7, 40), (B, 3 * B), (1, 1), (B + 1, 2 * B + 1)],
    "padded": [(1, 17), (1, 0), (5, 5), (3, 0), (1, 0)],
    "nothing this step": [(0, 9), (2, 2), (0, 0), (1, 30)],
    "tiles": [(1, n) for n in (511, 512, 513, 1024, 1100)] + [(3, 514)],
}


@dataclass
class Case:
    """A step's inputs, and what comes out by the plain formula for each request alone."""

    q: np.ndarray  # (T, Hq*D) in the first columns of (T, Hq*D + 8)
    kv: np.ndarray
    meta: StepMeta
    expected: np.ndarray

    @property
    def columns(self) -> int:
        return self.expected.shape[1]


def make_case(
    device: Device,
    rng: np.random.Generator,
    shape: Shape,
    dtype: np.dtype,
    lengths: list[tuple[int, int]],
    block_size: int = B,
    scale: float = 1.0,
) -> Case:
    """scale: of the values; queries and keys are such that scores reach about 10."""
    heads, kv_heads, dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
    counts = [-(-length // block_size) for _, length in lengths]
    free = rng.permutation(sum(counts) + 3)  # three blocks nobody owns
    tables = [free[sum(counts[:r]) : sum(counts[: r + 1])].tolist() for r in range(len(lengths))]
    kv = np.full((len(free), kv_heads, 2, block_size, dim), np.nan).astype(dtype)
    q = random(rng, (sum(n for n, _ in lengths), shape.q_columns + 8), dtype)
    expected, row = np.zeros((len(q), shape.q_columns), np.float32), 0
    for (n, length), table in zip(lengths, tables, strict=True):
        k, v = random(rng, (length, kv_heads, dim), dtype), random(rng, (length, kv_heads, dim), dtype, scale)
        for p in range(length):
            kv[table[p // block_size], :, 0, p % block_size] = k[p]
            kv[table[p // block_size], :, 1, p % block_size] = v[p]
        if length and n:
            mine = q[row : row + n, : shape.q_columns].reshape(n, heads, dim)
            expected[row : row + n] = attention_rows(mine, k, v).reshape(n, -1)
        row += n
    query_lens, seq_lens = [n for n, _ in lengths], [length for _, length in lengths]
    return Case(q, kv, step_meta(device, query_lens, seq_lens, tables, block_size), expected)


def run(ops: Ops, device: Device, case: Case) -> np.ndarray:
    q, kv = device.asarray(case.q), device.asarray(case.kv)
    out: Array = poisoned(device, case.expected.shape, case.q.dtype)
    ops.reserve(len(case.q), len(case.meta.seq_lens_host), case.meta.max_seq_len)
    with device.no_allocation():
        assert ops.attention(q[:, : case.columns], kv, case.meta, out=out) is out
    return device.to_host(out)


@pytest.mark.parametrize("lengths", STEPS.values(), ids=STEPS)
def test_steps(lengths, make, device, dtype, rng):
    ops = make(head_dim=16)
    case = make_case(device, rng, ops.config, dtype, lengths)
    assert_close(run(ops, device, case), case.expected)


@pytest.mark.parametrize("block_size", [1, 5, 8, 64])
def test_block_sizes(block_size, make, device, dtype, rng):
    ops = make(head_dim=16)
    lengths = [(1, 45), (9, 20), (1, block_size), (2, block_size + 1)]
    case = make_case(device, rng, ops.config, dtype, lengths, block_size)
    assert_close(run(ops, device, case), case.expected)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (4, 1), (9, 3)])
def test_groups(heads, kv_heads, make, device, dtype, rng):
    """MHA, MQA, GQA: head h reads key/value head h // group."""
    ops = make(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=16)
    case = make_case(device, rng, ops.config, dtype, [(1, 45), (9, 20)])
    assert_close(run(ops, device, case), case.expected)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_scales(head_dim, scale, make, device, dtype, rng):
    ops = make(head_dim=head_dim)
    case = make_case(device, rng, ops.config, dtype, [*DECODE, (9, 20)], scale=scale)
    assert_close(run(ops, device, case), case.expected)


@pytest.mark.parametrize("head_dim", [24, 80, 96, 256])
@pytest.mark.parametrize("name", ["reference", "tuned"])
def test_head_dims(name, head_dim, device, rng):
    shape = Shape(head_dim=head_dim)
    case = make_case(device, rng, shape, DTYPES["float32"], [*DECODE, (9, 20)])
    assert_close(run(SETS[name](device, shape, np.float32), device, case), case.expected)


@pytest.mark.parametrize("threads", [16, 64, 256])
@pytest.mark.parametrize("head_dim", [16, 24, 256])
def test_threads(head_dim, threads, device, rng):
    """The tuned kernel with the block of an emulator and with that of a GPU: from one group of threads to 64."""
    shape = Shape(head_dim=head_dim)
    ops = SETS["tuned"](device, shape, np.float32)
    ops._waiting_threads = threads
    for lengths in (STEPS["padded"], STEPS["chunks"], [(1, 514)]):
        case = make_case(device, rng, shape, DTYPES["float32"], lengths)
        assert_close(run(ops, device, case), case.expected)


def test_scores_that_would_overflow(make, device, dtype, rng):
    """Scores around +-1,000, whose exp is inf or 0 in every type: the maximum has to come off first, tile by tile."""
    ops = make(head_dim=16)
    case = make_case(device, rng, ops.config, dtype, [(1, 600), (1, 40)])
    case.q *= np.asarray(100, dtype)
    got = run(ops, device, case).astype(np.float32)
    assert np.isfinite(got).all()
    largest = np.nanmax(np.abs(case.kv.astype(np.float32)))
    assert 0 < np.abs(got).max() <= largest  # a mean of values


def test_rising_and_falling_scores(make, device, dtype):
    """The running maximum moves in every tile, or in the first alone; every weight is known by hand."""
    ops = make(num_attention_heads=1, num_key_value_heads=1, head_dim=16)
    for sign in (1, -1):
        scores = sign * np.linspace(0, 64, 1200, dtype=np.float32)
        kv = np.zeros((75, 1, 2, B, 16), dtype)
        kv[:, 0, 0, :, 0] = (4 * scores).reshape(75, B)  # q = 1 in column 0, and 1/sqrt(16) outside
        kv[:, 0, 1, :, :] = np.arange(1200, dtype=np.float32).reshape(75, B, 1) / 1200
        q = np.zeros((1, 24), dtype)
        q[0, 0] = 1
        weights = np.exp(kv[:, 0, 0, :, 0].astype(np.float64).ravel() / 4 - 64 * (sign > 0))
        mean = weights @ kv[:, 0, 1, :, 0].astype(np.float64).ravel() / weights.sum()
        case = Case(q, kv, step_meta(device, [1], [1200], [list(range(75))], B), np.full((1, 16), mean, np.float32))
        assert_close(run(ops, device, case), case.expected)


def test_a_nan_stays_in_its_request(make, device, dtype, rng):
    ops = make(head_dim=16)
    case = make_case(device, rng, ops.config, dtype, [(1, 20), (1, 20), (1, 20)])
    case.q[1] = np.nan
    got = run(ops, device, case)
    assert np.isnan(got[1].astype(np.float32)).all()
    assert_close(got[[0, 2]], case.expected[[0, 2]])


@pytest.mark.parametrize("name", ["reference", "tuned"])
def test_rows_that_nobody_owns_are_zeros(name, device, rng):
    """A captured graph runs with more rows than the step has tokens."""
    shape = Shape()
    case = make_case(device, rng, shape, DTYPES["float32"], [(2, 9), (1, 3)])
    case.q = np.concatenate([case.q, case.q])
    case.expected = np.concatenate([case.expected, np.zeros_like(case.expected)])
    assert_close(run(SETS[name](device, shape, np.float32), device, case), case.expected)


@pytest.mark.parametrize("name", ["reference", "tuned"])
def test_70_000_requests(name, device, rng):
    """One key each: the answer is its value."""
    shape, count = Shape(num_attention_heads=1, num_key_value_heads=1), 70_000
    kv = random(rng, (count, 1, 2, 1, 16), DTYPES["float32"])
    table = rng.permutation(count)
    meta = step_meta(device, [1] * count, [1] * count, [[int(b)] for b in table], 1)
    q = device.asarray(random(rng, (count, 16), DTYPES["float32"]))
    out = SETS[name](device, shape, np.float32).attention(q, device.asarray(kv), meta)
    np.testing.assert_allclose(device.to_host(out), kv[table, 0, 1, 0], rtol=1e-6)


@pytest.mark.parametrize("name", SETS)
def test_offsets_past_2_to_the_31(name, device, rng):
    """The last block of a cache of 2^31 + 4,096 elements: 4.3 GB, of which the emulator touches a few pages."""
    shape, dtype = Shape(num_attention_heads=2, num_key_value_heads=1, head_dim=64), DTYPES["bfloat16"]
    blocks = 2**31 // (2 * B * 64) + 2
    if device.name == "cuda" and device.memory_info()[0] < 6 * 2**30:
        pytest.skip("needs 6 GB of free GPU memory")
    size = (blocks, 1, 2, B, 64)
    kv = np.empty(size, dtype) if device.name == "emulator" else device.empty(size, dtype)
    table = [blocks - 1, blocks - 2]
    meta = step_meta(device, [20], [20], [table], B)
    q, k, v = (random(rng, (20, width), dtype) for width in (128, 64, 64))
    ops = SETS[name](device, shape, dtype)
    ops.reserve(20, 1, 20)
    ops.write_kv(device.asarray(k), device.asarray(v), kv, meta.slot_mapping)
    out = ops.attention(device.asarray(q), kv, meta)
    expected = attention_rows(q.reshape(20, 2, 64), k.reshape(20, 1, 64), v.reshape(20, 1, 64)).reshape(20, 128)
    assert_close(device.to_host(out), expected)
    np.testing.assert_array_equal(device.to_host(kv[blocks - 1])[0, 0], k[:B])
