"""`launch`: one launch of a kernel that may be wrong, in a child process and in check mode where the device has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.device.signature import parse_parameters
from tiny_vllm.device.source import scalar_options
from tiny_vllm.errors import KernelCheckError, UserError

Dim = int | tuple[int, ...]
VALUES_ONLY = "values only: check mode is the emulator's"


@dataclass(frozen=True)
class Run:
    """What a launch left: run["out"] is the array of the parameter `out`; inputs stay as they were.

    findings: check mode's, each with .kind, .file, .line and .message. report: its counters, with count=True.
    """

    outputs: Mapping[str, np.ndarray]
    findings: tuple[Any, ...] = ()
    report: Any = None

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.outputs:
            raise UserError(f"the kernel has no output {name!r}; it has {', '.join(self.outputs) or 'none'}")
        return self.outputs[name]


def run_kernel(
    device: Device,
    code: str,
    kernel: str,
    grid: Dim,
    block: Dim,
    args: Sequence[Any],
    *,
    check: bool = True,
    count: bool = False,
    shared_mem: int = 0,
    options: tuple[str, ...] = (),
) -> Run:
    """Launch on copies of the arguments, in a child process on the emulator; with count=True in this one.

    Raises KernelError for a launch that fails for another reason than what check mode finds.
    """
    emulated = device.name == "emulator"
    if count and not emulated:
        raise UserError("counters are the emulator's; add device='emulator'")
    settings = {"check": check or count, "count": count, "isolated": not count} if emulated else {}
    passed = on_device(device, args)
    launched = device.RawKernel(code, kernel, options, **settings)
    findings: Sequence[Any] = ()
    try:
        launched(as_tuple(grid), as_tuple(block), passed, shared_mem=shared_mem)
    except KernelCheckError as error:
        findings = error.findings
    report = launched.report() if count else None  # type: ignore[attr-defined]
    written = {
        each.name: device.to_host(array)
        for each, array in zip(parse_parameters(code, kernel, options), passed, strict=True)
        if each.pointer and not each.const
    }
    return Run(written, tuple(findings), report)


def on_device(device: Device, args: Sequence[Any]) -> list[Any]:
    """Copies of the arrays on the device; numbers as they are."""
    return [device.asarray(arg) if isinstance(arg, np.ndarray) else arg for arg in args]


def options_for(args: Sequence[Any]) -> tuple[str, ...]:
    """scalar_t is the type of the first argument that is an array of floats; float32 where there is none."""
    found = (arg.dtype for arg in args if isinstance(arg, np.ndarray) and arg.dtype.kind not in "iub")
    return scalar_options(next(found, np.dtype(np.float32)))


def as_tuple(size: Dim) -> tuple[int, ...]:
    """A grid or block of one dimension may be a plain number."""
    return (size,) if isinstance(size, int) else tuple(size)
