"""Sets by name, and mistakes in shapes that are named before a kernel runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import DTYPES, Shape, integers, random, step_meta
from tiny_vllm.errors import UserError
from tiny_vllm.ops import make_ops
from tiny_vllm.ops.tuned import TunedOps
from tiny_vllm.reference.ops import ReferenceOps


def test_names(device):
    assert isinstance(make_ops("tuned", device, Shape(), np.float32), TunedOps)
    assert isinstance(make_ops("reference", device, Shape(), np.float32), ReferenceOps)
    with pytest.raises(UserError, match="no set of operations 'fast'; give tuned or reference"):
        make_ops("fast", device, Shape(), np.float32)


@pytest.mark.parametrize("head_dim", [8, 20, 100, 264])
def test_head_dims_that_no_kernel_takes(head_dim, device):
    with pytest.raises(UserError, match=f"head_dim is {head_dim}; supported: multiples of 8 from 16 to 256"):
        TunedOps(device, Shape(head_dim=head_dim), np.float32)


def test_a_dtype_that_no_kernel_takes(device):
    with pytest.raises(UserError, match="float64"):
        TunedOps(device, Shape(), np.float64)


@pytest.fixture
def arrays(device, rng) -> dict[str, Any]:
    """Right ones for Shape(): 6 heads on 2, head_dim 16; 3 tokens, 5 blocks of 4."""
    shapes: dict[str, tuple[int, ...]] = {"x": (3, 40), "w": (40,), "W": (7, 40), "q": (3, 96), "k": (3, 32)}
    shapes |= {"kv": (5, 2, 2, 4, 16), "table": (9, 16)}
    made = {name: device.asarray(random(rng, shape, DTYPES["float32"])) for name, shape in shapes.items()}
    made["ids"] = integers(device, [0, 2, 1])
    made["meta"] = step_meta(device, [3], [3], [[4]], 4)
    return made


MISTAKES = {
    "embed: out": lambda o, a: o.embed(a["ids"], a["x"], out=a["q"]),
    "rms_norm: weight": lambda o, a: o.rms_norm(a["x"], a["w"][1:], 1e-5),
    "rms_norm: out": lambda o, a: o.rms_norm(a["x"], a["w"], 1e-5, out=a["q"]),
    "rope: q": lambda o, a: o.rope(a["k"], a["k"], a["ids"], a["table"]),
    "rope: k": lambda o, a: o.rope(a["q"], a["q"], a["ids"], a["table"]),
    "rope: positions": lambda o, a: o.rope(a["q"], a["k"], a["ids"][1:], a["table"]),
    "rope: table": lambda o, a: o.rope(a["q"], a["k"], a["ids"], a["x"]),
    "linear: weight": lambda o, a: o.linear(a["q"], a["W"]),
    "linear: out": lambda o, a: o.linear(a["x"], a["W"], out=a["x"]),
    "silu_mul: gate_up": lambda o, a: o.silu_mul(a["x"][:, 1:]),
    "silu_mul: out": lambda o, a: o.silu_mul(a["x"], out=a["x"]),
    "attention: q": lambda o, a: o.attention(a["k"], a["kv"], a["meta"]),
    "attention: kv": lambda o, a: o.attention(a["q"], a["kv"][:, :1], a["meta"]),
    "attention: out": lambda o, a: o.attention(a["q"], a["kv"], a["meta"], out=a["k"]),
    "take_rows: out": lambda o, a: o.take_rows(a["x"], a["ids"], out=a["q"]),
    "write_kv: k": lambda o, a: o.write_kv(a["q"], a["k"], a["kv"], a["ids"]),
    "write_kv: v": lambda o, a: o.write_kv(a["k"], a["q"], a["kv"], a["ids"]),
    "write_kv: slots": lambda o, a: o.write_kv(a["k"], a["k"], a["kv"], a["ids"][1:]),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_wrong_shapes_are_named(what, arrays, device):
    with pytest.raises(UserError, match=rf"{what} has shape \(.*; wanted \("):
        MISTAKES[what](TunedOps(device, Shape(), np.float32), arrays)


def test_add_needs_something_to_add_to(arrays, device):
    with pytest.raises(UserError, match="add=True adds to out; give the array"):
        TunedOps(device, Shape(), np.float32).linear(arrays["x"], arrays["W"], add=True)
