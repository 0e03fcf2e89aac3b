"""Where the tensor-core attention holds, and that attention.cu stands in where it does not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cases import DTYPES, Shape, assert_close
from tests.ops.test_attention import Case, make_case
from tests.ops.test_attention import run as run_attention
from tiny_vllm.device.emulator import Emulator
from tiny_vllm.errors import UserError
from tiny_vllm.ops.paged_attention import (
    MAX_SPLITS,
    WAVE,
    PagedAttention,
    plan_decode,
    quickest_prefill,
    what_is_missing,
)
from tiny_vllm.ops.tuned import TunedOps

BF16, LENGTHS = DTYPES["bfloat16"], [(1, 20), (9, 25), (1, 0)]


class PretendedGPU(Emulator):
    """An emulator that the selector takes for a GPU."""

    name = "cuda"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", [1, 3, 4, 7, 8])
def test_where_it_holds(group, head_dim, dtype):
    shape = Shape(2 * group, 2, head_dim)
    for capability in (80, 86, 90, 120):
        assert what_is_missing(Emulator(capability), shape, DTYPES[dtype]) == ""


MISSING = {
    "the device is sm_75; needed: sm_80": (75, Shape(4, 2, 64), "float16", 16),
    "the element type is float32; supported: bfloat16 and float16": (90, Shape(4, 2, 64), "float32", 16),
    "head_dim is 16; supported: 64 and 128": (90, Shape(4, 2, 16), "float16", 16),
    "head_dim is 80; supported: 64 and 128": (90, Shape(4, 2, 80), "bfloat16", 16),
    "9 query heads share a key/value head; supported: up to 8": (90, Shape(9, 1, 64), "bfloat16", 16),
    "block_size is 8; supported: 16": (90, Shape(4, 2, 64), "bfloat16", 8),
    "block_size is 32; supported: 16": (90, Shape(4, 2, 64), "bfloat16", 32),
}


@pytest.mark.parametrize(("reason", "case"), MISSING.items(), ids=MISSING)
def test_where_it_does_not(reason, case, rng):
    """The reason is named; asked for by name it is an error; left to itself the plain kernel gives the right answer."""
    capability, shape, name, block_size = case
    dtype, gpu = DTYPES[name], PretendedGPU(capability)
    assert what_is_missing(gpu, shape, dtype, block_size) == reason
    inputs = make_case(gpu, rng, shape, dtype, LENGTHS, block_size)
    for choice in ("paged", "mma.sync"):
        with pytest.raises(
            UserError, match=rf"attention='{choice}' does not hold here: {reason}; leave attention at 'auto'"
        ):
            run_attention(TunedOps(gpu, shape, dtype, attention=choice), gpu, inputs)
    assert_close(run_attention(TunedOps(gpu, shape, dtype), gpu, inputs), inputs.expected)


def test_hopper_s_own_products_are_for_hopper_alone():
    assert [quickest_prefill(Emulator(each)) for each in (80, 89, 90, 100, 120)] == [
        "paged_prefill",
        "paged_prefill",
        "paged_prefill_wgmma",
        "paged_prefill",
        "paged_prefill",
    ]


def paged_was_used(ops: TunedOps, inputs: Case) -> bool:
    """Whether the tensor-core kernels ran; they are compiled by then, and not before."""
    run_attention(ops, ops.device, inputs)
    return ops._paged is not None and bool(ops._paged._kernels)


def test_the_choice(rng):
    shape = Shape(8, 2, 64)
    for device, choice, used in (
        (Emulator(), "auto", False),  # its twins are right and slow
        (Emulator(), "plain", False),
        (Emulator(), "paged", True),
        (PretendedGPU(), "auto", True),
        (PretendedGPU(), "plain", False),
    ):
        ops = TunedOps(device, shape, BF16, choice)  # type: ignore[arg-type]
        assert paged_was_used(ops, make_case(device, rng, shape, BF16, LENGTHS)) is used


@pytest.mark.parametrize("block_size", [1, 8, 32])
def test_other_block_sizes_of_one_set(block_size, rng):
    """The cache tells its block size at the call; a set that can do both does each by the kernel that holds."""
    gpu, shape = PretendedGPU(), Shape(8, 2, 64)
    ops = TunedOps(gpu, shape, BF16)
    inputs = make_case(gpu, rng, shape, BF16, LENGTHS, block_size)
    assert_close(run_attention(ops, gpu, inputs), inputs.expected)


def test_replacing_another_operation_keeps_it(rng):
    gpu, shape = PretendedGPU(), Shape(8, 2, 64)
    ops = TunedOps(gpu, shape, BF16)
    copy = ops.replace(silu_mul=print)
    assert isinstance(copy, TunedOps) and isinstance(copy._paged, PagedAttention)
    assert paged_was_used(copy, make_case(gpu, rng, shape, BF16, LENGTHS))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_plan_of_a_decode_step(head_dim):
    """Blocks, shared memory and scratch stay within what the kernel and reserve have, for every batch."""
    for kv_heads in (1, 2, 3, 5, 8, 32):
        for requests in range(0, 300):
            warps, splits = plan_decode(requests, kv_heads, head_dim, 1000)
            assert 32 * warps <= (512 if head_dim == 64 else 256)
            assert warps * 8 * (head_dim + 4) * 4 <= 48 * 1024
            assert 1 <= splits <= MAX_SPLITS and (splits == 1 or requests * kv_heads * splits <= WAVE)
    assert plan_decode(1, 8, 64, 1000) == (16, 16) and plan_decode(256, 8, 64, 1000) == (8, 1)


@pytest.mark.parametrize(("width", "splits"), [(0, 1), (1, 1), (16, 1), (17, 2), (136, 9), (256, 16), (9999, 16)])
def test_short_contexts_are_split_no_further_than_they_have_pages(width, splits):
    assert plan_decode(1, 8, 64, width) == (16, splits)


def test_rows_of_q_at_odd_places_are_refused(rng):
    gpu = PretendedGPU()
    ops = TunedOps(gpu, Shape(8, 2, 64), BF16)
    case = make_case(gpu, rng, ops.config, BF16, LENGTHS)
    case.q = np.pad(case.q, ((0, 0), (0, 3)))
    with pytest.raises(UserError, match="rows of q are 523 elements apart; they must be a multiple of 8"):
        run_attention(ops, gpu, case)


def test_an_empty_step():
    ops = TunedOps(PretendedGPU(), Shape(8, 2, 64), BF16)
    device, rng = ops.device, np.random.default_rng(1)
    case = make_case(device, rng, ops.config, BF16, [(0, 5), (0, 0)])
    assert run_attention(ops, device, case).shape == (0, 512)
