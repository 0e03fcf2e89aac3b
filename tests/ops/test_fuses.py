"""A fused stage never hides a primitive that somebody replaced, and a step allocates nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conftest import DATA
from tests.ops.cases import DTYPES
from tests.ops.running import Running
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.weights import load_weights
from tiny_vllm.ops.base import PRIMITIVES, STAGES, Ops
from tiny_vllm.ops.tuned import TunedOps

COMPOSED = {
    "attn_in": ("rms_norm", "linear", "rope", "write_kv"),
    "attention": ("rope", "write_kv", "attention"),  # a kernel that also does what attn_in then leaves out
    "attn_out": ("linear",),
    "mlp_in": ("rms_norm", "linear", "silu_mul"),
    "mlp_out": ("linear",),
    "head": ("take_rows", "rms_norm", "linear"),
    "layers": ("rms_norm", "linear", "rope", "write_kv", "attention", "silu_mul"),
}
PAIRS = [(stage, primitive) for stage, primitives in COMPOSED.items() for primitive in primitives]
IDS = [[5, 17, 300, 2], [9], [100, 101, 102, 103, 104, 105, 106]]


def fused_set(*stages: str) -> Any:
    """A set whose stages run on operations of its own, which nobody can replace: as a fused kernel does."""

    def fused(stage: str) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            self.ran.append(stage)
            return getattr(self.own, stage)(*args, **kwargs)

        return run

    def init(self: Any, device: Any, config: Any, dtype: Any) -> None:
        TunedOps.__init__(self, device, config, dtype)
        self.own, self.ran = TunedOps(device, config, dtype), []

    members = {"__init__": init, "FUSES": {s: COMPOSED[s] for s in stages}, **{s: fused(s) for s in stages}}
    return type("FusedOps", (TunedOps,), members)


def nan_after(ops: Ops, primitive: str) -> Any:
    """The primitive, whose result is then NaN everywhere."""
    honest = getattr(ops, primitive)
    results = {"rope": (0, 1), "write_kv": (2,)}.get(primitive)

    def run(*args: Any, **kwargs: Any) -> Any:
        result = honest(*args, **kwargs)
        for array in (result,) if results is None else (args[i] for i in results):
            for row in array:  # rows are contiguous, also where they are columns of a wider array
                ops.device.copy_in(row, np.full(row.shape, np.nan, np.float32))
        return result

    return run


@pytest.fixture(scope="module")
def model(device) -> tuple[Any, Any]:
    folder = DATA / "tiny" / "tiny"
    config = ModelConfig.from_folder(folder)
    return config, load_weights(folder, config, device, DTYPES["float32"])


def logits(device, model, ops: Ops) -> np.ndarray:
    config, weights = model
    return Running(device, config, weights, ops, [len(ids) + 1 for ids in IDS]).step(IDS)


def test_the_table_names_every_stage():
    assert set(COMPOSED) == set(STAGES)
    assert {p for primitives in COMPOSED.values() for p in primitives} | {"embed"} == set(PRIMITIVES)


@pytest.mark.parametrize("stage", STAGES)
def test_a_fused_stage_runs_and_changes_nothing(stage, model, device):
    ops = fused_set(stage)(device, model[0], np.float32)
    expected = logits(device, model, TunedOps(device, model[0], np.float32))
    np.testing.assert_array_equal(logits(device, model, ops), expected)
    assert set(ops.ran) == {stage}


@pytest.mark.parametrize(("stage", "primitive"), PAIRS)
def test_a_replaced_primitive_reaches_the_logits(stage, primitive, model, device):
    ops = fused_set(stage)(device, model[0], np.float32)
    broken = ops.replace(**{primitive: nan_after(ops, primitive)})
    assert np.isnan(logits(device, model, broken)).all()
    assert np.isfinite(logits(device, model, ops)).all()  # the copy is replaced, not the original


@pytest.mark.parametrize(("stage", "primitive"), PAIRS)
def test_a_subclass_reaches_the_logits(stage, primitive, model, device):
    """The other way to replace: a student's class below the fused one."""
    fused = fused_set(stage)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return nan_after(TunedOps(self.device, self.config, self.dtype), primitive)(*args, **kwargs)

    student = type("Student", (fused,), {primitive: method})
    assert np.isnan(logits(device, model, student(device, model[0], np.float32))).all()


@pytest.mark.parametrize("primitive", PRIMITIVES)
@pytest.mark.parametrize("stages", [STAGES, [s for s in STAGES if s != "layers"]], ids=["all fused", "all but layers"])
def test_with_everything_fused(stages, primitive, model, device):
    ops = fused_set(*stages)(device, model[0], np.float32)
    assert np.isnan(logits(device, model, ops.replace(**{primitive: nan_after(ops, primitive)}))).all()


def test_replacing_twice_keeps_both(model, device):
    ops = fused_set(*STAGES)(device, model[0], np.float32)
    called = set()

    def spy(name: str) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return getattr(ops, name)(*args, **kwargs)

        return run

    both = ops.replace(rms_norm=spy("rms_norm")).replace(silu_mul=spy("silu_mul"))
    # Products of other numbers of rows, since a replaced primitive sees every row of the last layer too
    np.testing.assert_allclose(logits(device, model, both), logits(device, model, ops), rtol=1e-4, atol=1e-5)
    assert called == {"rms_norm", "silu_mul"}


def test_an_unknown_primitive_is_named(model, device):
    with pytest.raises(ValueError, match="rmsnorm: no such primitive; the primitives are embed, rms_norm"):
        TunedOps(device, model[0], np.float32).replace(rmsnorm=print)


def test_a_step_allocates_nothing(model, device):
    """Prefill, decode, and a step with both; Running.step forbids allocations, and an allocating primitive is found."""
    ops = TunedOps(device, model[0], np.float32)
    running = Running(device, model[0], model[1], ops, [len(ids) + 2 for ids in IDS])
    running.step(IDS)
    running.step([[1], [2], [3]])

    def allocating(x: Any, weight: Any, eps: float, out: Any = None) -> Any:
        return ops.rms_norm(x, weight, eps)

    with pytest.raises(Exception, match="alloc"):
        logits(device, model, ops.replace(rms_norm=allocating))


def test_assignment_replaces_too(model, device):
    """ops.rms_norm = mine, as one would in a notebook."""
    ops = fused_set(*STAGES)(device, model[0], np.float32)
    ops.rms_norm = nan_after(ops, "rms_norm")
    assert np.isnan(logits(device, model, ops)).all()


def test_a_stage_that_goes_on_to_a_fused_one_hides_nothing(model, device):
    """It declares what it fuses itself, and by super() runs a stage that fuses more."""

    def mlp_in(self: Any, *args: Any) -> None:
        super(wider, self).mlp_in(*args)  # type: ignore[arg-type]

    wider = type("Wider", (fused_set("mlp_in"),), {"mlp_in": mlp_in, "FUSES": {"mlp_in": ("silu_mul",)}})
    ops = wider(device, model[0], np.float32)
    assert np.isnan(logits(device, model, ops.replace(rms_norm=nan_after(ops, "rms_norm")))).all()


def test_fused_layers_hide_no_stage(model, device):
    def attn_out(self: Any, attended: Any, x: Any, layer: Any, b: Any) -> None:
        x[...] = np.nan

    student = type("Student", (fused_set("layers"),), {"attn_out": attn_out})
    assert np.isnan(logits(device, model, student(device, model[0], np.float32))).all()


@pytest.mark.parametrize(
    "fuses", [{"mlp": ("rms_norm",)}, {"mlp_in": ("rmsnorm",)}, {"mlp_in": "linear"}, {"head": ()}]
)
def test_a_fuses_that_would_hide_something_is_refused(fuses):
    with pytest.raises(TypeError, match=r"Wrong\.FUSES has .*; give a stage that Wrong overrides"):
        type("Wrong", (TunedOps,), {"FUSES": fuses, "mlp_in": Ops.mlp_in})
