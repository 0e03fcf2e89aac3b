"""The fused stages of steps with few rows, decode_*.cu, on the emulator through the twins of their instructions.

The oracle rounds to the element type where the kernels do: the rows on their way into a product, and each result. An
element may fall to the other side, which moves a sum by a unit of one of its products.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import DATA
from tests.ops.cases import DTYPES, RTOL, SCALES, Shape, integers, random
from tests.ops.running import Running, prompts
from tests.ops.test_forward import TOLERANCE
from tests.ops.test_fuses import nan_after
from tests.ops.test_paged_choice import PretendedGPU
from tiny_vllm.device.emulator import Emulator
from tiny_vllm.device.source import load_source
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.weights import load_weights
from tiny_vllm.ops import decode
from tiny_vllm.ops.base import Ops
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.ops.decode import plan_grid
from tiny_vllm.ops.invariant import InvariantOps
from tiny_vllm.ops.tuned import TunedOps
from tiny_vllm.reference import ops as reference
from tiny_vllm.types import StepMeta

GROUPS = {1: (2, 2), 3: (6, 2), 4: (4, 1), 7: (7, 1)}  # query heads a key/value head: heads, kv_heads
BLOCK_SIZE, POSITIONS, VOCABULARY, HIDDEN, WIDTH = 16, 50, 80, 128, 320
STAGES = ("attn_in", "attn_out", "mlp_in", "mlp_out", "head")


both_types = pytest.mark.parametrize("dtype", ["bfloat16", "float16"], indirect=True)


@pytest.fixture
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    return DTYPES[getattr(request, "param", "bfloat16")]


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block has several tiles, and its queue goes from one to the next."""
    monkeypatch.setattr(decode, "plan_grid", lambda tiles, wave: plan_grid(tiles, 3))


class Step:
    """Random weights, activations and places of a step, on the host, and the same on the device, results NaN."""

    def __init__(
        self, device: Any, rng: np.random.Generator, shape: Shape, dtype: np.dtype, rows: int, hidden: int = HIDDEN,
        width: int = WIDTH, scale: float = 1.0, tokens: int | None = None,
    ) -> None:  # fmt: skip
        self.device, self.shape, self.dtype, self.rows = device, shape, dtype, rows
        tokens = rows if tokens is None else tokens
        heads, kv_heads, dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim

        def some(*size: int, scale: float = 1.0) -> np.ndarray:
            return random(rng, size, dtype, scale)

        self.layer = SimpleNamespace(
            input_norm=some(hidden), qkv=some((heads + 2 * kv_heads) * dim, hidden, scale=hidden**-0.5),
            o=some(hidden, heads * dim, scale=(heads * dim) ** -0.5), post_attention_norm=some(hidden),
            gate_up=some(2 * width, hidden, scale=hidden**-0.5), down=some(hidden, width, scale=width**-0.5),
        )  # fmt: skip
        self.weights = SimpleNamespace(norm=some(hidden), lm_head=some(VOCABULARY, hidden, scale=hidden**-0.5))
        self.x, self.attended = some(tokens, hidden, scale=scale), some(tokens, heads * dim, scale=scale)
        self.activated = some(tokens, width, scale=scale)
        self.positions = rng.integers(0, POSITIONS, tokens)
        self.slots = rng.permutation(5 * BLOCK_SIZE)[:tokens]
        self.slots[1::3] = -1
        self.wanted = rng.permutation(tokens)[:rows]
        self.table = rng.uniform(-1, 1, (POSITIONS, dim)).astype(np.float32)
        self.kv_shape = (5, kv_heads, 2, BLOCK_SIZE, dim)
        self._to_device(hidden, width)

    def _to_device(self, hidden: int, width: int) -> None:
        put, shape = self.device.asarray, self.shape
        self.on_device = SimpleNamespace(
            layer=SimpleNamespace(**{name: put(value) for name, value in vars(self.layer).items()}),
            weights=SimpleNamespace(**{name: put(value) for name, value in vars(self.weights).items()}),
            kv=put(np.full(self.kv_shape, np.nan).astype(self.dtype)), x=put(self.x), attended=put(self.attended),
        )  # fmt: skip
        sizes = SimpleNamespace(hidden_size=hidden, intermediate_size=width, vocab_size=VOCABULARY, **vars(shape))
        tokens = len(self.x)
        b = Buffers.allocate(self.device, sizes, self.dtype, tokens, self.rows, put(self.table))
        for name, value in vars(b).items():
            if name != "rope_table" and hasattr(value, "shape"):
                self.device.copy_in(value, np.full(value.shape, np.nan).astype(value.dtype))
        self.b = b
        ones = integers(self.device, range(tokens))
        self.meta = StepMeta(
            integers(self.device, self.positions), integers(self.device, self.slots), ones, ones, ones[:, None],
            integers(self.device, self.wanted), [1] * tokens, [1] * tokens,
        )  # fmt: skip

    # ---- what a stage leaves, by the kernels

    def run(self, ops: Ops, stage: str) -> np.ndarray:
        """The stage's results, one array."""
        d = self.on_device
        if stage == "mlp_out":
            self.device.copy_in(self.b.activated, self.activated)
        with self.device.no_allocation():
            {
                "attn_in": lambda: ops.attn_in(d.x, d.layer, d.kv, self.meta, self.b),
                "attn_out": lambda: ops.attn_out(d.attended, d.x, d.layer, self.b),
                "mlp_in": lambda: ops.mlp_in(d.x, d.layer, self.b),
                "mlp_out": lambda: ops.mlp_out(d.x, d.layer, self.b),
                "head": lambda: ops.head(d.x, d.weights, self.meta, self.b),
            }[stage]()
        host = self.device.to_host
        if stage == "attn_in":
            return np.concatenate([host(self.b.q).ravel(), host(d.kv).ravel()])
        return host({"mlp_in": self.b.activated, "head": self.b.logits}.get(stage, d.x))

    # ---- and by NumPy

    def expected(self, stage: str) -> np.ndarray:
        layer, x = self.layer, self.x.astype(np.float32)
        if stage == "attn_out":
            return x + reference.linear(self.attended, layer.o)
        if stage == "mlp_out":
            return x + reference.linear(self.activated, layer.down)
        if stage == "mlp_in":
            return reference.silu_mul(self._product(self.x, layer.post_attention_norm, layer.gate_up))
        if stage == "head":
            return self._product(self.x[self.wanted], self.weights.norm, self.weights.lm_head)
        return self._attn_in()

    def _product(self, x: np.ndarray, gain: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Norm and product. In bfloat16 x * gain is rounded, and the scale of a row comes after the product."""
        if self.dtype == np.float16:
            return reference.linear(reference.rms_norm(x, gain, self.shape.rms_norm_eps).astype(self.dtype), weight)
        wide = x.astype(np.float32)
        scale = 1 / np.sqrt(np.square(wide).mean(axis=1, keepdims=True) + self.shape.rms_norm_eps)
        return reference.linear((wide * gain.astype(np.float32)).astype(self.dtype), weight) * scale

    def _attn_in(self) -> np.ndarray:
        q_columns, kv_columns = self.shape.q_columns, self.shape.kv_columns
        qkv = self._product(self.x, self.layer.input_norm, self.layer.qkv)
        q, k, v = np.split(qkv, [q_columns, q_columns + kv_columns], axis=1)
        q, k = (reference.rope(part, self.positions, self.table) for part in (q, k))
        kv = np.full(self.kv_shape, np.nan, np.float32)
        for token, slot in enumerate(self.slots):
            if slot >= 0:
                place = kv[slot // BLOCK_SIZE, :, :, slot % BLOCK_SIZE]
                place[:, 0], place[:, 1] = (part[token].reshape(len(place), -1) for part in (k, v))
        return np.concatenate([q.ravel(), kv.ravel()])


def check(got: np.ndarray, step: Step, stage: str) -> None:
    """NaN where nothing was to be written; elsewhere within the rounding of the result and of a normalised element."""
    expected, unit = step.expected(stage), RTOL[step.dtype.name]
    size = float(np.sqrt(np.nanmean(np.square(expected, dtype=np.float64))))
    rtol = 1e-5 if stage == "head" else unit
    np.testing.assert_allclose(got.astype(np.float32), expected, rtol=rtol, atol=unit * size / 4)
    error = np.sqrt(np.nanmean(np.square(got.astype(np.float64) - expected)))
    assert error <= 0.3 * unit * size


@pytest.fixture
def make(device: Any, dtype: np.dtype):
    """make(head_dim, group): the set with these stages; skipped on a GPU that cannot run them."""
    if device.compute_capability < 80:
        pytest.skip("needs sm_80")

    def make(head_dim: int = 64, group: int = 3) -> TunedOps:
        return TunedOps(device, Shape(*GROUPS[group], head_dim), dtype, attention="plain", stages="fused")

    return make


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the fused kernels that ran."""
    names: list[str] = []
    launch = decode.DecodeStages._launch

    def run(self: Any, name: str, *args: Any) -> None:
        names.append(name)
        launch(self, name, *args)

    monkeypatch.setattr(decode.DecodeStages, "_launch", run)
    return names


# ---- right numbers


@both_types
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("stage", STAGES)
def test_rows(stage, rows, make, device, dtype, rng, launches):
    ops = make()
    step = Step(device, rng, ops.config, dtype, rows)
    check(step.run(ops, stage), step, stage)
    assert len(launches) == 1


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("group", GROUPS)
def test_heads(group, head_dim, make, device, dtype, rng, launches):
    ops = make(head_dim, group)
    for stage in ("attn_in", "attn_out"):
        step = Step(device, rng, ops.config, dtype, 3)
        check(step.run(ops, stage), step, stage)
    columns = ops.config.q_columns
    assert launches == ["decode_qkv"] + (["decode_linear"] if columns % 64 == 0 else [])


@pytest.mark.parametrize("hidden", [64, 576, 2816])
@pytest.mark.parametrize("stage", STAGES)
def test_widths(stage, hidden, make, device, dtype, rng, few_blocks, launches):
    """Fewer chunks than warps, one more than they are, and more for each than its queue holds."""
    ops = make(64, 1)
    step = Step(device, rng, ops.config, dtype, 2, hidden, width=hidden)
    check(step.run(ops, stage), step, stage)
    assert len(launches) == 1


@both_types
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("stage", STAGES)
def test_scales(stage, scale, make, device, dtype, rng, launches):
    ops = make(64, 1)
    step = Step(device, rng, ops.config, dtype, 8, scale=scale)
    check(step.run(ops, stage), step, stage)
    assert len(launches) == 1


def test_a_step_with_few_wanted_rows_of_many(make, device, dtype, rng, launches):
    """A prompt: the head takes 3 of 20 rows."""
    ops = make(64, 1)
    step = Step(device, rng, ops.config, dtype, 3, tokens=20)
    check(step.run(ops, "head"), step, "head")
    assert launches == ["decode_head"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_row_does_not_depend_on_the_others(stage, make, device, dtype, rng, launches):
    """Its bits: alone, and beside seven others of which one is NaN and one infinite."""
    ops = make(64, 1)
    step = Step(device, rng, ops.config, dtype, 8)
    for name, value in (("x", step.x), ("attended", step.attended), ("activated", step.activated)):
        value[2], value[6] = np.nan, np.inf
        if name != "activated":
            device.copy_in(getattr(step.on_device, name), value)
    step.slots[:], step.wanted[:] = np.arange(8), np.arange(8)
    device.copy_in(step.meta.slot_mapping, step.slots.astype(np.int32))
    device.copy_in(step.meta.logits_indices, step.wanted.astype(np.int32))
    together = step.run(ops, stage)
    for row in (0, 4, 7):
        alone = one_row(step, row, device)
        got = alone.run(ops, stage)
        if stage == "attn_in":
            columns = ops.config.q_columns
            np.testing.assert_array_equal(got[:columns], together[row * columns : (row + 1) * columns])
            kv = [part[-np.prod(step.kv_shape) :].reshape(step.kv_shape)[0, :, :, row] for part in (got, together)]
            assert np.isfinite(kv[0].astype(np.float32)).all()
            np.testing.assert_array_equal(kv[0], kv[1])
        else:
            assert np.isfinite(got.astype(np.float32)).all()
            np.testing.assert_array_equal(got[0], together[row])
    assert len(launches) == 4


def one_row(step: Step, row: int, device: Any) -> Step:
    """The same weights, and one row of the step's."""
    alone = Step(device, np.random.default_rng(0), step.shape, step.dtype, 1)
    alone.layer, alone.weights, alone.table = step.layer, step.weights, step.table
    for name in ("x", "attended", "activated", "positions", "slots"):
        setattr(alone, name, getattr(step, name)[row : row + 1])
    alone.wanted = np.zeros(1, np.int64)
    alone._to_device(HIDDEN, WIDTH)
    return alone


@pytest.mark.parametrize("stage", STAGES)
def test_thirty_times_the_same_bits(stage, make, device, dtype, rng):
    ops = make(64, 4)
    step = Step(device, rng, ops.config, dtype, 7, hidden=576, width=320)
    first = step.run(ops, stage)
    for _ in range(1 if device.name == "emulator" else 30):
        device.copy_in(step.on_device.x, step.x)
        again = step.run(ops, stage)
        np.testing.assert_array_equal(again.view(np.uint8), first.view(np.uint8))  # NaN is left where nothing belongs


@both_types
@pytest.mark.parametrize("name", ["tiny-hd128", "tiny-rope3"])
def test_a_whole_model(name, device, dtype, launches):
    """Six prompts in one step, whose head is fused already, then 8 tokens of all of them."""
    if device.compute_capability < 80:
        pytest.skip("needs sm_80")
    folder, golden, tolerance = DATA / "tiny" / name, prompts(DATA / "tiny" / name), TOLERANCE[dtype.name]
    config = ModelConfig.from_folder(folder)
    ops, lengths = TunedOps(device, config, dtype, "plain", "fused"), [len(p["ids"]) + 8 for p in golden]
    running = Running(device, config, load_weights(folder, config, device, dtype), ops, lengths)
    logits = running.step([p["ids"] for p in golden])
    np.testing.assert_allclose(logits, [p["logits"] for p in golden], rtol=0, atol=tolerance)
    tokens, _ = running.greedy(logits, 8)
    for prompt, row in zip(golden, tokens, strict=True):
        different = np.flatnonzero(row != prompt["tokens"][:8])
        assert not len(different) or prompt["margin"][different[0]] < tolerance
    assert len(launches) == 1 + 7 * (4 * config.num_hidden_layers + 1)


# ---- where they hold


@pytest.mark.parametrize("rows", [0, 9])
@pytest.mark.parametrize("stage", STAGES)
def test_other_numbers_of_rows_are_composed(stage, rows, make, device, dtype, rng, launches):
    ops = make(64, 1)
    step = Step(device, rng, ops.config, dtype, rows)
    got = step.run(ops, stage)
    assert launches == []
    if rows:
        np.testing.assert_allclose(got.astype(np.float32), step.expected(stage), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("stage", STAGES)
def test_other_widths_are_composed(stage, make, device, dtype, rng, launches):
    ops = make(64, 1)
    step = Step(device, rng, ops.config, dtype, 2, hidden=88, width=44)
    step.run(ops, stage)
    assert launches == []


MISSING = {
    "the device is sm_75; needed: sm_80": (75, Shape(4, 2, 64), "float16"),
    "the element type is float32; supported: bfloat16 and float16": (90, Shape(4, 2, 64), "float32"),
    "head_dim is 24; supported: multiples of 16": (90, Shape(4, 2, 24), "bfloat16"),
}


@pytest.mark.parametrize(("reason", "case"), MISSING.items(), ids=MISSING)
def test_where_they_do_not_hold(reason, case, rng, launches):
    capability, shape, name = case
    gpu = PretendedGPU(capability)
    with pytest.raises(UserError, match=rf"stages='fused' does not hold here: {reason}; leave stages at 'auto'"):
        TunedOps(gpu, shape, DTYPES[name], stages="fused")
    ops = TunedOps(gpu, shape, DTYPES[name], attention="plain")
    step = Step(gpu, rng, shape, DTYPES[name], 2)
    got = step.run(ops, "mlp_in").astype(np.float32)
    np.testing.assert_allclose(got, step.expected("mlp_in"), rtol=0.02, atol=0.02)
    assert launches == []


def test_the_choice():
    shape = Shape(8, 2, 64)
    for device, choice, used in (
        (Emulator(), "auto", False),  # its twins are right and slow
        (Emulator(), "fused", True),
        (PretendedGPU(), "auto", True),
        (PretendedGPU(), "composed", False),
    ):
        ops = TunedOps(device, shape, DTYPES["bfloat16"], "plain", choice)  # type: ignore[arg-type]
        assert (ops._decode is not None) is used


def test_rows_that_shared_memory_cannot_hold_are_composed():
    """8 normalised rows of 8,192 fit an H200's 227 KiB, not the 99 KiB of an RTX 4090; a queue of rows is smaller."""
    weight = np.zeros((16, 8192), DTYPES["bfloat16"])
    for capability, normed, plain in ((90, 8, 8), (80, 5, 8), (89, 1, 5)):
        stages = decode.DecodeStages(Emulator(capability), Shape(), DTYPES["bfloat16"])
        for most, norm in ((normed, True), (plain, False)):
            fitting = [rows for rows in range(10) if stages.fits(rows, weight, norm)]
            assert fitting == list(range(1, most + 1))


def test_the_launcher_knows_the_header_s_sizes():
    source = load_source("gemv.cuh")
    found = {name: int(value) for name, value in re.findall(r"\bint (\w+) = (\d+)", source)}
    sizes = (*(found[name] for name in ("WARPS", "MAX_ROWS", "TILE", "DEPTH", "SUM_STRIDE")), 32 * found["PIECES"])
    assert sizes == (decode.WARPS, decode.MAX_ROWS, decode.TILE, decode.DEPTH, decode.SUM_STRIDE, decode.CHUNK)


@pytest.mark.parametrize("wave", [108, 132])
def test_blocks_share_tiles_evenly(wave):
    for tiles in (1, 5, 128, 192, 264, 265, 1024, 8016):
        blocks = plan_grid(tiles, wave)
        assert 1 <= blocks <= wave and -(-tiles // blocks) == -(-tiles // wave)


@pytest.mark.parametrize("stage", STAGES)
def test_one_block_a_multiprocessor(stage, make, device, dtype, rng, monkeypatch):
    """Each block has more than half of the shared memory."""
    ops, step = (built := make(64, 1)), Step(device, rng, built.config, dtype, 2)
    asked = []

    class Spy:
        def __call__(self, *args: Any, shared_mem: int, **settings: Any) -> None:
            asked.append(shared_mem)

    monkeypatch.setattr(decode.DecodeStages, "_kernel", lambda self, name: Spy())
    step.run(ops, stage)
    assert len(asked) == 1 and 2 * asked[0] > ops._decode._most_shared


@pytest.mark.parametrize("stage", ["attn_in", "mlp_in", "head"])
@pytest.mark.parametrize("large", [30000.0, 60000.0])
@both_types
def test_rows_that_times_the_gain_are_beyond_float16(large, stage, make, device, dtype, rng):
    """A model's residuals may be as large; the normalised row is not."""
    ops = make(64, 1)
    step = Step(device, rng, ops.config, dtype, 3)
    step.x[:] = np.where(rng.random(step.x.shape) < 0.5, -large, large)
    step.x[1] = dtype.type(1e-5)  # and this one's squares are below it
    for gain in (step.layer.input_norm, step.layer.post_attention_norm, step.weights.norm):
        gain[:] = dtype.type(4.0)
    step._to_device(HIDDEN, WIDTH)
    check(step.run(ops, stage), step, stage)


# ---- what they must not hide


@pytest.mark.parametrize(("stage", "primitive"), [(stage, name) for stage in STAGES for name in TunedOps.FUSES[stage]])
def test_a_replaced_primitive_is_used(stage, primitive, device, rng):
    if device.compute_capability < 80:
        pytest.skip("needs sm_80")
    dtype = DTYPES["bfloat16"]
    ops = TunedOps(device, Shape(2, 2, 32), dtype, attention="plain", stages="fused")
    called = []

    def spy(*args: Any, **kwargs: Any) -> Any:
        called.append(primitive)
        return getattr(ops, primitive)(*args, **kwargs)

    step = Step(device, rng, ops.config, dtype, 2)
    got = step.run(ops.replace(**{primitive: spy}), stage)
    assert called == [primitive]
    keep = np.isfinite(step.expected(stage))
    np.testing.assert_allclose(got.astype(np.float32)[keep], step.expected(stage)[keep], rtol=0.05, atol=0.05)


def test_a_norm_of_nan_reaches_the_logits(make, device, dtype, rng):
    ops = make(64, 1)
    step = Step(device, rng, ops.config, dtype, 2)
    assert np.isnan(step.run(ops.replace(rms_norm=nan_after(ops, "rms_norm")), "head")).all()
    assert np.isfinite(step.run(ops, "head")).all()


def test_batch_invariant_mode_composes(device, rng, launches):
    """More rows than eight would be another kernel's, with other bits."""
    dtype = DTYPES["bfloat16"]
    ops = InvariantOps(PretendedGPU(), Shape(2, 2, 32), dtype)
    step = Step(ops.device, rng, ops.config, dtype, 2)
    for stage in STAGES:
        step.run(ops, stage)
    assert launches == []


@pytest.mark.parametrize("stage", STAGES)
def test_check_mode_finds_nothing(stage, rng, monkeypatch):
    """No access out of bounds, no race, nothing read that nobody wrote."""
    monkeypatch.setenv("TINY_VLLM_CHECK", "1")
    emulator, shape = Emulator(), Shape(2, 1, 32)
    ops = TunedOps(emulator, shape, DTYPES["bfloat16"], attention="plain", stages="fused")
    step = Step(emulator, rng, shape, DTYPES["bfloat16"], 3, hidden=64, width=64)
    check(step.run(ops, stage), step, stage)
