"""How the kernels of a module run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tiny_vllm.device.emulator.watchdog import default_timeout
from tiny_vllm.device.emulator.workers import default_workers
from tiny_vllm.errors import KernelError


class Recorder(Protocol):
    """What a kernel asks before it runs: is a graph being captured?"""

    @property
    def capturing(self) -> bool: ...
    def record(self, run: Callable[[], None]) -> None: ...


@dataclass(frozen=True)
class Settings:
    """How kernels of a module run.

    timeout: seconds a launch may take. workers: OS threads that run blocks side by side. isolated: each launch runs in
    a child process, which may die without harm. check: report every wrong access. recorder: the device's stream.
    """

    timeout: float = field(default_factory=default_timeout)
    workers: int = field(default_factory=default_workers)
    isolated: bool = False
    check: bool = False
    compute_capability: int = 90
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        if self.check:
            raise KernelError("check=True: the emulator has no check mode yet; leave check out")
        if not self.timeout > 0 or self.workers < 1:
            raise KernelError(f"timeout {self.timeout} and workers {self.workers} must be above 0")
