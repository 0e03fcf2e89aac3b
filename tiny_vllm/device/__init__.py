"""The machines that kernels run on: a GPU through CuPy, or the emulator, with one interface (base.Device)."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from tiny_vllm.device.base import Device, Event, Graph, Kernel, Module
from tiny_vllm.errors import DeviceError, UserError

__all__ = ["Device", "Event", "Graph", "Kernel", "Module", "RawKernel", "RawModule", "get_device"]

NAMES = ("auto", "cuda", "emulator")


def get_device(name: str = "auto") -> Device:
    """The device of that name: "cuda", "emulator" or "auto". Each is made once.

    auto is what TINY_VLLM_DEVICE says; without it, cuda where CuPy finds a GPU, else the emulator. Raises DeviceError
    when cuda is asked for and not there, UserError for an unknown name.
    """
    chosen = (os.environ.get("TINY_VLLM_DEVICE") or "auto") if name == "auto" else name
    if chosen not in NAMES:
        where = " (from TINY_VLLM_DEVICE)" if name == "auto" else ""
        raise UserError(f"there is no device {chosen!r}{where}; choose one of {', '.join(NAMES)}")
    if chosen == "auto":
        chosen = "cuda" if _why_no_cuda() is None else "emulator"
    return _make(chosen)


def RawKernel(code: str, name: str, options: tuple[str, ...] = (), **settings: Any) -> Kernel:
    """CuPy's RawKernel on the default device, which may be the emulator; arguments are checked at each launch."""
    return get_device().RawKernel(code, name, options, **settings)


def RawModule(code: str, options: tuple[str, ...] = (), **settings: Any) -> Module:
    """CuPy's RawModule on the default device: several kernels of one source."""
    return get_device().RawModule(code, options, **settings)


@cache
def _make(name: str) -> Device:
    if name == "emulator":
        from tiny_vllm.device.emulator import Emulator

        return Emulator()
    if reason := _why_no_cuda():
        raise DeviceError(f"cuda is not available: {reason}; or choose the emulator (--device emulator)")
    from tiny_vllm.device.cuda import Cuda

    return Cuda()


@cache
def _why_no_cuda() -> str | None:
    from tiny_vllm.device.cupy_setup import why_no_cuda

    return why_no_cuda()
