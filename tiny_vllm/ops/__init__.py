"""Sets of operations by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiny_vllm.errors import UserError

if TYPE_CHECKING:
    from tiny_vllm.device.base import Device
    from tiny_vllm.ops.base import Ops


def make_ops(name: str, device: Device, config: Any, dtype: Any) -> Ops:
    """The set called "tuned" or "reference"; UserError for another name."""
    from tiny_vllm.ops.tuned import TunedOps
    from tiny_vllm.reference.ops import ReferenceOps  # not above: it imports ops.base, and so this file

    sets: dict[str, type[Ops]] = {each.name: each for each in (TunedOps, ReferenceOps)}
    if name not in sets:
        raise UserError(f"there is no set of operations {name!r}; give {' or '.join(sets)}")
    return sets[name](device, config, dtype)
