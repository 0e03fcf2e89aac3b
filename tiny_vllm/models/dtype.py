"""Which element type a model runs in on a device."""

from __future__ import annotations

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.device.source import as_dtype
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig

BFLOAT16_CAPABILITY = 80  # the first architecture, Ampere, that computes in bfloat16


def resolve_dtype(name: str, config: ModelConfig, device: Device) -> np.dtype:
    """The element type behind a dtype's name; UserError where the device does not compute in it."""
    lacks_bfloat16 = device.name == "cuda" and device.compute_capability < BFLOAT16_CAPABILITY
    if name == "auto":
        name = device.default_dtype if device.name == "emulator" else config.dtype
        name = "float16" if name == "bfloat16" and lacks_bfloat16 else name
    if name == "bfloat16" and lacks_bfloat16:
        major, minor = divmod(device.compute_capability, 10)
        raise UserError(
            f"dtype is bfloat16: {device.description} has compute capability {major}.{minor}, and bfloat16 needs 8.0; "
            "use float16 or float32"
        )
    return as_dtype(name)
