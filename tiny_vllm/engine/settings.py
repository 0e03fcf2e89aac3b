"""What LLM's settings mean on this device and for this checkpoint; a setting that cannot hold is a UserError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tiny_vllm.device import get_device
from tiny_vllm.device.base import Device
from tiny_vllm.device.source import as_dtype
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.ops import make_ops
from tiny_vllm.ops.base import Ops
from tiny_vllm.ops.invariant import InvariantOps
from tiny_vllm.sampling_params import plain_number

DTYPES = ("auto", "bfloat16", "float16", "float32")
OPS_NAMES = ("tuned", "reference")

OpsFactory = Callable[[Device, ModelConfig, Any], Ops]


def check_choices(dtype: Any, ops: Any) -> None:
    """What can be refused before a model is even looked for."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UserError(f"dtype is {dtype!r}; give one of {', '.join(DTYPES)}")
    known = ops in OPS_NAMES if isinstance(ops, str) else ops is None or isinstance(ops, Ops) or callable(ops)
    if not known:
        raise UserError(
            f"ops is {ops!r}; give one of {', '.join(OPS_NAMES)}, an Ops object, or a callable that makes one"
        )


def choose_ops(ops: str | Ops | OpsFactory | None, batch_invariant: Any) -> str | Ops | OpsFactory | None:
    """The set of operations that the two settings ask for; another set than our own holds no such promise."""
    if not isinstance(batch_invariant, bool):
        raise UserError(f"batch_invariant is {batch_invariant!r}; give True or False")
    if batch_invariant and ops not in (None, "tuned"):
        raise UserError(
            f"batch_invariant=True runs operations of its own, and ops is {ops!r:.60}; leave one of them out"
        )
    return InvariantOps if batch_invariant else ops


def resolve_device(name: str, ops: Any) -> Device:
    """The device by its name; an Ops object brings its own, which the name may not contradict.

    DeviceError when it cannot run kernels: on a machine without a compiler before a model is fetched, and not after.
    """
    if not isinstance(ops, Ops):
        device = get_device(name)
        _ = device.description  # the emulator names its compiler, and so looks for it
        return device
    if name not in ("auto", ops.device.name):
        raise UserError(f"device is {name!r}, and ops was made for {ops.device.name!r}; leave one of them out")
    return ops.device


def resolve_length(max_model_len: int | None, config: ModelConfig) -> int:
    """The length of prompt and answer together, by default the checkpoint's own limit."""
    limit, max_model_len = config.max_position_embeddings, plain_number(max_model_len)
    if max_model_len is None:
        return limit
    if type(max_model_len) is not int or not 2 <= max_model_len <= limit:
        raise UserError(
            f"max_model_len is {max_model_len!r}; give a whole number from 2 to {limit}, the checkpoint's limit"
        )
    return max_model_len


def resolve_ops(ops: str | Ops | OpsFactory | None, device: Device, config: ModelConfig, dtype: np.dtype) -> Ops:
    """The set of operations by its name, by its maker or as it is; it must be made for this model."""
    if ops is None or isinstance(ops, str):
        return make_ops(ops or "tuned", device, config, dtype)
    operations = ops if isinstance(ops, Ops) else ops(device, config, dtype)
    if not isinstance(operations, Ops):
        raise UserError(f"ops made {operations!r:.60}; it should make an Ops object")
    if operations.config != config or as_dtype(operations.dtype) != dtype:
        made_for = as_dtype(operations.dtype).name
        raise UserError(
            f"ops was made for another model, or for {made_for} where this one runs in {dtype.name}; "
            "make it from this model's config and dtype, or give its class"
        )
    return operations
