"""How the kernels of a module run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tiny_vllm.device.emulator.watchdog import default_timeout
from tiny_vllm.device.emulator.workers import default_workers
from tiny_vllm.errors import KernelError, UserError

ORDERS = ("forward", "reverse")


def default_check() -> bool:
    """TINY_VLLM_CHECK: 1 checks every kernel."""
    text = os.environ.get("TINY_VLLM_CHECK", "")
    if text not in ("", "0", "1"):
        raise UserError(f"TINY_VLLM_CHECK is {text!r}; give 1 to check every kernel, or 0")
    return text == "1"


def default_order() -> str:
    """TINY_VLLM_THREAD_ORDER, else forward."""
    text = os.environ.get("TINY_VLLM_THREAD_ORDER", "")
    if text and text not in ORDERS:
        raise UserError(f"TINY_VLLM_THREAD_ORDER is {text!r}; choose one of {', '.join(ORDERS)}")
    return text or "forward"


class Recorder(Protocol):
    """What a kernel asks before it runs: is a graph being captured?"""

    @property
    def capturing(self) -> bool: ...
    def record(self, run: Callable[[], None]) -> None: ...


@dataclass(frozen=True)
class Settings:
    """How kernels of a module run.

    timeout: seconds a launch may take. workers: OS threads that run blocks side by side. isolated: each launch runs in
    a child process, which may die without harm. check: report every wrong access (check/; TINY_VLLM_CHECK=1). count:
    counters for kernel.report(), with check. order: of a block's threads, "forward" or "reverse"
    (TINY_VLLM_THREAD_ORDER). recorder: the device's stream.
    """

    timeout: float = field(default_factory=default_timeout)
    workers: int = field(default_factory=default_workers)
    isolated: bool = False
    check: bool = field(default_factory=default_check)
    count: bool = False
    order: str = field(default_factory=default_order)
    compute_capability: int = 90
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise KernelError(f"order is {self.order!r}; choose one of {', '.join(ORDERS)}")
        if self.count and not self.check:
            raise KernelError("count=True is a part of check mode; give check=True too")
        if self.count and self.isolated:
            raise KernelError("count=True: an isolated kernel's counters stay in its process; leave isolated out")
        if not isinstance(self.timeout, (int, float)) or not self.timeout > 0:
            raise KernelError(f"timeout is {self.timeout!r}; give the seconds that a launch may take, above 0")
        if type(self.workers) is not int or self.workers < 1:
            raise KernelError(f"workers is {self.workers!r}; give a whole number of at least 1")
