"""All layers of a step in one kernel, decode_layers.cu: where it holds, what stands in, and, on a GPU, what comes out.

The kernel has no twin on the emulator. Its results are compared with float32 ones, and may be no further from them than
those of the composed stages, which round activations in more places, are with some room.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.ops.cases import DTYPES
from tests.ops.layer_steps import BF16, LayerShape, LayerStep, Model, distance, wide
from tests.ops.test_fuses import nan_after
from tests.ops.test_paged_choice import PretendedGPU
from tiny_vllm.device import nvrtc
from tiny_vllm.device.emulator import Emulator
from tiny_vllm.device.source import load_source
from tiny_vllm.errors import DeviceError, KernelError, LaunchError, UserError
from tiny_vllm.ops import persistent
from tiny_vllm.ops.base import PRIMITIVES, Ops
from tiny_vllm.ops.invariant import InvariantOps
from tiny_vllm.ops.persistent import PersistentLayers, what_is_missing
from tiny_vllm.ops.tuned import TunedOps

SMALL = LayerShape(4, 2, 64, 256, 256)
LLAMA_1B = LayerShape(32, 8, 64, 2048, 8192)
SHAPES = {
    "head_dim 64, group 1, more pairs than blocks": LayerShape(32, 32, 64, 256, 512),
    "head_dim 64, group 3": LayerShape(12, 4, 64, 1280, 2304),
    "head_dim 64, group 4": LayerShape(8, 2, 64, 512, 1280),
    "head_dim 64, group 7": LayerShape(28, 4, 64, 768, 256),
    "head_dim 128, group 1": LayerShape(4, 4, 128, 512, 768),
    "head_dim 128, group 3": LayerShape(6, 2, 128, 256, 1024),
    "head_dim 128, group 4": LayerShape(32, 8, 128, 4096, 4352),
    "head_dim 128, group 7": LayerShape(14, 2, 128, 256, 5120),
    "Llama-3.2-1B": LLAMA_1B,
}
LENGTHS = [
    [5], [1], [16], [17], [3900], [0], [2, 17], [16, 0, 640], [33, 257, 1, 1000], [100, 15, 16, 17, 31],
    [2048, 1, 300, 0, 0, 7], [64] * 7, [128, 300, 5, 2000, 256, 257, 258, 1024],
]  # fmt: skip


class PretendedH200(PretendedGPU):
    """A selector believes that it is one; nothing can be launched on it."""

    num_multiprocessors = 132


# ---- where it holds


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_where_it_holds(shape):
    assert what_is_missing(PretendedH200(90), shape, BF16) == ""


MISSING = {
    "the device is sm_80; needed: sm_90": (PretendedH200(80), {}, "bfloat16", 16),
    "the emulator runs one block after another; needed: a GPU, where all run at the same time":
        (Emulator(90), {}, "bfloat16", 16),
    "the element type is float16; supported: bfloat16": (PretendedH200(90), {}, "float16", 16),
    "the element type is float32; supported: bfloat16": (PretendedH200(90), {}, "float32", 16),
    "head_dim is 80; supported: 64 and 128": (PretendedH200(90), {"head_dim": 80}, "bfloat16", 16),
    "9 query heads share a key/value head; supported: up to 8":
        (PretendedH200(90), {"num_attention_heads": 36, "num_key_value_heads": 4}, "bfloat16", 16),
    "block_size is 32; supported: 16": (PretendedH200(90), {}, "bfloat16", 32),
    "hidden_size is 576; supported: multiples of 256": (PretendedH200(90), {"hidden_size": 576}, "bfloat16", 16),
    "hidden_size is 5120; supported: up to 4096": (PretendedH200(90), {"hidden_size": 5120}, "bfloat16", 16),
    "heads * head_dim is 192; supported: multiples of 256":
        (PretendedH200(90), {"num_attention_heads": 3, "num_key_value_heads": 1}, "bfloat16", 16),
    "intermediate_size is 1000; supported: multiples of 256":
        (PretendedH200(90), {"intermediate_size": 1000}, "bfloat16", 16),
    "a block has 101376 bytes of shared memory; needed: 152704": (PretendedH200(120), {}, "bfloat16", 16),
}  # fmt: skip


@pytest.mark.parametrize(("reason", "case"), MISSING.items(), ids=MISSING)
def test_where_it_does_not(reason, case):
    """The reason is named; asked for by name it is an error, and left to itself another set of stages stands in."""
    device, changes, name, block_size = case
    shape = replace(LLAMA_1B, **changes)
    assert what_is_missing(device, shape, DTYPES[name], block_size) == reason
    if block_size == 16:
        with pytest.raises(UserError, match=r"stages='persistent' does not hold here: .*; leave stages at 'auto'"):
            TunedOps(device, shape, DTYPES[name], stages="persistent")
        assert TunedOps(device, shape, DTYPES[name])._persistent is None


def test_the_choice():
    for device, attention, stages, used in (
        (PretendedH200(90), "auto", "auto", True),
        (PretendedH200(90), "auto", "persistent", True),
        (PretendedH200(90), "plain", "persistent", True),
        (PretendedH200(90), "plain", "auto", False),  # the kernel has an attention of its own
        (PretendedH200(90), "auto", "fused", False),
        (PretendedH200(90), "auto", "composed", False),
        (PretendedH200(100), "auto", "auto", False),  # it holds, but nobody has measured it there
        (PretendedH200(100), "auto", "persistent", True),
        (Emulator(90), "auto", "auto", False),
    ):
        ops = TunedOps(device, SMALL, BF16, attention, stages)  # type: ignore[arg-type]
        assert (ops._persistent is not None) is used


# ---- what stands in


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that the kernel was asked for."""
    found: list[int] = []
    monkeypatch.setattr(PersistentLayers, "reserve", lambda self: None)
    monkeypatch.setattr(PersistentLayers, "__call__", lambda self, x, *rest: found.append(len(x)))
    return found


def few_ops(device: Any, **settings: Any) -> TunedOps:
    ops = TunedOps(device, SMALL, BF16, attention="plain", stages="persistent", **settings)
    ops._decode = None  # its twins are slow
    return ops


@pytest.mark.parametrize("lengths", [[3], [5, 0, 1], [2] * 8, [2] * 9])
def test_steps_of_one_to_eight_rows_are_launched(lengths, launches, rng):
    device = PretendedH200(90)
    step = LayerStep(Model(device, rng, SMALL), rng, lengths)
    got = step.run(few_ops(device))
    assert launches == ([len(lengths)] if len(lengths) <= 8 else [])
    if not launches:
        assert distance(got, step.expected()[0]) < 0.01


def test_steps_with_more_than_one_token_a_request_are_composed(launches, rng):
    device = PretendedH200(90)
    step = LayerStep(Model(device, rng, SMALL), rng, [3, 3])
    step.meta.query_lens_host[:] = [2]  # as two tokens of one request
    few_ops(device).layers(step.hidden, step.model, step.cache, step.meta, step.buffers)
    assert launches == []


def test_another_block_size_is_composed(launches, rng):
    device = PretendedH200(90)
    step = LayerStep(Model(device, rng, SMALL), rng, [3])
    step.cache.block_size = 8
    few_ops(device).layers(step.hidden, step.model, step.cache, step.meta, step.buffers)
    assert launches == []


@pytest.mark.parametrize("primitive", [name for name in PRIMITIVES if name not in ("embed", "take_rows")])
def test_a_replaced_primitive_is_used(primitive, launches, rng):
    device = PretendedH200(90)
    ops = few_ops(device)
    step = LayerStep(Model(device, rng, SMALL), rng, [3, 4])
    step.run(ops)
    assert launches == [2]
    got = step.run(ops.replace(**{primitive: nan_after(ops, primitive)}))
    assert launches == [2] and np.isnan(got).any()


@pytest.mark.parametrize("stage", ["attn_in", "attention", "attn_out", "mlp_in", "mlp_out"])
def test_somebody_s_stage_is_used(stage, launches, rng):
    called = []

    def mine(self: Ops, *args: Any, **kwargs: Any) -> Any:
        called.append(stage)
        return getattr(TunedOps, stage)(self, *args, **kwargs)

    device = PretendedH200(90)
    ops = type("Mine", (TunedOps,), {stage: mine})(device, SMALL, BF16, attention="plain", stages="persistent")
    ops._decode = None
    LayerStep(Model(device, rng, SMALL), rng, [3]).run(ops)
    assert launches == [] and len(called) == SMALL.num_hidden_layers


# ---- the launcher and the kernel


def test_what_is_never_launched_is_not_compiled(monkeypatch):
    reserved = []
    monkeypatch.setattr(PersistentLayers, "reserve", lambda self: reserved.append(self))
    device = PretendedH200(90)
    for ops in (InvariantOps(device, SMALL, BF16), few_ops(device).replace(linear=print)):
        ops.reserve(8, 8, 128)
    assert not reserved
    few_ops(device).reserve(8, 8, 128)
    assert reserved


def test_blocks_share_tiles_evenly():
    assert persistent.plan_blocks(LLAMA_1B, 132) == 128
    for shape in SHAPES.values():
        for multiprocessors in (1, 7, 114, 132):
            assert 1 <= persistent.plan_blocks(shape, multiprocessors) <= multiprocessors


@pytest.mark.parametrize("name", ["head_dim 64, group 3", "head_dim 128, group 7", "Llama-3.2-1B"])
def test_the_launcher_knows_the_kernel_s_sizes(name):
    shape, blocks = SHAPES[name], 128
    facts = {
        "SHARED_FIXED": persistent.fixed_bytes(shape),
        "STAGE_BYTES": persistent.STAGE_BYTES,
        "THREADS": persistent.THREADS,
        "MAX_ROWS": persistent.MAX_ROWS,
        "ADDRESSES": 7,
        "PAGE": persistent.BLOCK_SIZE,
        f"(AT_PARTIAL + {blocks} * PARTIAL_WORDS + 3) / 4 * 4": persistent.layer_words(shape, blocks),
        f"16 * {persistent.MAX_STAGES} <= SHARED_BARRIERS": 1,
    }
    asserts = [f'static_assert(({name}) == {value}, "{name}");' for name, value in facts.items()]
    try:
        nvrtc.compile_cuda("")
    except DeviceError as error:
        pytest.skip(str(error))
    report = nvrtc.compile_cuda("\n".join([load_source(persistent.FILE), *asserts]), "", 90, persistent.sizes(shape))
    assert report.kernels["decode_layers"].spill_bytes == 0


# ---- on a GPU


@cache
def build(device: Any, shape: LayerShape) -> tuple[Model, TunedOps, TunedOps]:
    """A model, the kernel, and the composed stages."""
    model = Model(device, np.random.default_rng(1), shape)
    ops = TunedOps(device, shape, BF16, stages="persistent")
    ops.reserve(8, 8, 4096)
    return model, ops, TunedOps(device, shape, BF16, attention="plain", stages="composed")


@pytest.fixture
def on_gpu(device: Any) -> Any:
    if missing := what_is_missing(device, LLAMA_1B, BF16):
        pytest.skip(missing)
    return device


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_against_float32(shape, lengths, on_gpu, rng):
    model, ops, composed = build(on_gpu, shape)
    step = LayerStep(model, rng, lengths)
    hidden, keys_and_values = step.expected()
    got = step.run(ops)
    assert step.untouched()
    if any(lengths):
        assert distance(step.written(), keys_and_values) < 0.015
    assert distance(got, hidden) < max(0.008, 1.6 * distance(step.run(composed), hidden))


@pytest.mark.parametrize("lengths", [[128], [100, 15, 16], LENGTHS[-1]], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_thirty_times_the_same_bits(shape, lengths, on_gpu, rng):
    model, ops, _ = build(on_gpu, shape)
    step = LayerStep(model, rng, lengths)
    first = step.run(ops)
    for _ in range(30):
        np.testing.assert_array_equal(step.run(ops), first)


def test_graphs_of_several_sizes_in_turn(on_gpu, rng):
    """A step of other rows must find every exchange word empty, whatever ran before it."""
    model, ops, _ = build(on_gpu, SMALL)
    steps = [LayerStep(model, rng, lengths) for lengths in ([777], [128, 300, 5], [1] * 8, [40, 0])]
    first, graphs = [step.run(ops) for step in steps], []
    for step in steps:
        step.run(ops)  # binds the cache's addresses
        with on_gpu.capture() as graph:
            step.launch(ops)
        graphs.append(graph)
    for turn in range(12):
        index = (turn * turn + turn // 3) % len(steps)
        step, graph = steps[index], graphs[index]
        step.run(ops)
        step.restore()
        graph.launch()
        np.testing.assert_array_equal(wide(on_gpu.to_host(step.hidden)), first[index])


def test_a_capture_with_an_unknown_cache_is_refused(on_gpu, rng):
    model, ops, _ = build(on_gpu, SMALL)
    step = LayerStep(model, rng, [5])
    with pytest.raises(KernelError, match="once before capturing"), on_gpu.capture():
        step.launch(ops)
    step.run(ops)


def test_a_launch_that_cannot_be_is_refused_and_harms_no_later_one(on_gpu, rng, monkeypatch):
    model, ops, _ = build(on_gpu, SMALL)
    step = LayerStep(model, rng, [33, 5])
    first = step.run(ops)
    with monkeypatch.context() as patch:
        patch.setattr(ops._persistent, "blocks", 1000)
        with pytest.raises(LaunchError, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
            step.run(ops)
    np.testing.assert_array_equal(step.run(ops), first)


WITHOUT_A_BLOCK = """
import numpy as np
from tests.ops.layer_steps import BF16, LayerShape, LayerStep, Model
from tiny_vllm.device import get_device
from tiny_vllm.ops import persistent
from tiny_vllm.ops.tuned import TunedOps

load, begin = persistent.load_source, "    if (threadIdx.x == 0) ring.init();"
persistent.load_source = lambda name: load(name).replace(begin, "    if (blockIdx.x == 1) return;\\n" + begin)
device, shape = get_device("cuda"), LayerShape(4, 2, 64, 256, 256)
rng, ops = np.random.default_rng(0), TunedOps(device, shape, BF16, stages="persistent")
ops.reserve(8, 8, 4096)
LayerStep(Model(device, rng, shape), rng, [5]).run(ops)
"""


def test_a_block_that_never_comes_ends_in_an_error(on_gpu):
    """In a process of its own: after a trap it can use the GPU no more."""
    ended = subprocess.run([sys.executable, "-c", WITHOUT_A_BLOCK], capture_output=True, text=True, timeout=60)
    assert ended.returncode and "LaunchError" in ended.stderr, ended.stderr


def test_a_row_depends_on_no_other(on_gpu, rng):
    model, ops, _ = build(on_gpu, SMALL)
    step = LayerStep(model, rng, [77, 40, 300])
    first = step.run(ops)
    step.x[1] = np.nan
    got = step.run(ops)
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], first[[0, 2]])
