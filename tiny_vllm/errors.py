"""The errors that a user can meet; each names the value, the limit and the way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class UserError(ValueError):
    """A mistake that one sentence can mend: the command line prints it and exits with code 2."""


class DeviceError(UserError):
    """A device, compiler or driver that is asked for and not there."""


class KernelError(RuntimeError):
    """A kernel that does not compile, is launched wrongly, or fails while it runs."""


class CompileError(KernelError):
    """The compiler's own message about a .cu file, with the reader's file and line."""


class KernelCheckError(KernelError):
    """What check mode found in a launch; findings is a list of tiny_vllm.device.emulator.check.Finding."""

    def __init__(self, message: str, findings: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.findings = list(findings)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.findings)


class LaunchError(KernelError):
    """What CUDA refuses at a launch, in CUDA's words, or a kernel that ran into an error."""
