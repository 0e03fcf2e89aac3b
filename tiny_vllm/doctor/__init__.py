"""What this machine has, what it lacks, and the one command that mends it: the table behind `tiny-vllm doctor`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tiny_vllm.doctor import compilers, cuda, cupy_packages, folders, system
from tiny_vllm.doctor.finding import Finding, Status, first_line, note, problem
from tiny_vllm.doctor.machine import Machine
from tiny_vllm.errors import KernelError, UserError

__all__ = ["CHECKS", "Check", "Finding", "Machine", "Status", "examine"]


@dataclass(frozen=True)
class Check:
    """A row. run: None where it has nothing to say of this machine. side: who needs it: "all", "cuda" or "emulator"."""

    name: str
    run: Callable[[Machine], Finding | None]
    side: str = "all"


CHECKS = (
    Check("python", system.check_python),
    Check("packages", system.check_packages),
    Check("system", system.check_system),
    Check("memory", system.check_memory),
    Check("settings", system.check_settings),
    Check("compiler", compilers.check_compiler, "emulator"),
    Check("emulator", compilers.check_emulator, "emulator"),
    Check("cache", folders.check_cache),
    Check("CuPy's cache", folders.check_cupy_cache, "cuda"),  # before CuPy is imported, which moves it
    Check("disk", folders.check_disk),
    Check("driver", cuda.check_driver, "cuda"),
    Check("GPU", cuda.check_gpu, "cuda"),
    Check("GPU memory", cuda.check_gpu_memory, "cuda"),
    Check("conda", system.check_conda, "cuda"),
    Check("CuPy", cupy_packages.check_cupy, "cuda"),
    Check("other CUDA", cupy_packages.check_other_cuda, "cuda"),
    Check("CuPy's import", cuda.check_cupy_import, "cuda"),
    Check("headers", cuda.check_headers, "cuda"),
    Check("NVRTC", cuda.check_nvrtc, "cuda"),
    Check("GPU kernel", cuda.check_cuda_kernel, "cuda"),
    Check("cuBLAS", cuda.check_cublas, "cuda"),
    Check("model", folders.check_model),
    Check("hub cache", folders.check_hub_cache),
    Check("notebooks", system.check_notebooks),
)


def examine(machine: Machine | None = None, checks: tuple[Check, ...] = CHECKS) -> Iterator[Finding]:
    """The findings, one after another as they are found. No check raises; one that fails becomes a finding itself."""
    machine = machine or Machine()
    for check in checks:
        with warnings.catch_warnings():  # a cache that falls back warns; a check of its own says so
            warnings.simplefilter("ignore")
            finding = _run(check, machine)
            if finding is not None:
                finding = _weigh(finding, check, machine)
        if finding is not None:
            yield replace(finding, check=check.name)


def _run(check: Check, machine: Machine) -> Finding | None:
    try:
        return check.run(machine)
    except (UserError, KernelError) as error:  # these name their way out
        return problem(first_line(error))
    except Exception as error:
        failure = f"this check failed itself ({type(error).__name__}: {first_line(error)}); please report it"
        return note(failure, "tiny-vllm doctor --report")


def _weigh(finding: Finding, check: Check, machine: Machine) -> Finding:
    """A fault on a side that is not needed here is a note: the other side runs kernels."""
    if finding.status is not Status.PROBLEM or check.side == "all":
        return finding
    chosen = os.environ.get("TINY_VLLM_DEVICE", "auto")
    try:
        if check.side == "cuda":
            needed = chosen == "cuda" or (machine.has_gpu and chosen != "emulator")
        else:
            needed = chosen == "emulator" or machine.cuda_error is not None
    except Exception:  # what fails here has a row that says so
        needed = True
    return finding if needed else replace(finding, status=Status.NOTE)
