"""Facts about this machine that several checks look at; each is found out once, when it is first asked for."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tiny_vllm.doctor.finding import first_line

OLDEST_CUDA_12, OLDEST_CUDA_13 = 525, 580  # major versions of NVIDIA's driver for Linux
WSL_NVIDIA_SMI = "/usr/lib/wsl/lib/nvidia-smi"
_QUERY = "--query-gpu=driver_version,compute_cap,memory.free,memory.total,name"
_CUPY = re.compile(r"cupy(-cuda\d+x?|-rocm-[\d-]+)?|amd-cupy")


@dataclass(frozen=True)
class Gpu:
    """compute_capability: 75 for 7.5; memory in MiB."""

    name: str
    compute_capability: int
    free_mib: int
    total_mib: int


@dataclass(frozen=True)
class Driver:
    """What nvidia-smi says. version: "580.65.06"; error: its own words where it fails."""

    version: str = ""
    gpus: tuple[Gpu, ...] = ()
    error: str = ""

    @property
    def cuda(self) -> int:
        """The newest CUDA it runs: 13, 12, or 0 for what is older."""
        major = int(self.version.partition(".")[0] or 0)
        return 13 if major >= OLDEST_CUDA_13 else 12 if major >= OLDEST_CUDA_12 else 0


class Machine:
    """This machine and this Python environment."""

    @cached_property
    def driver(self) -> Driver | None:
        """None where there is no nvidia-smi."""
        program = shutil.which("nvidia-smi") or (WSL_NVIDIA_SMI if os.path.exists(WSL_NVIDIA_SMI) else None)
        return ask_nvidia_smi(program) if program else None

    @property
    def has_gpu(self) -> bool:
        return self.driver is not None and bool(self.driver.gpus)

    @cached_property
    def packages(self) -> dict[str, str]:
        """{normalised name: version} of every Python package in the environment."""
        found: dict[str, str] = {}
        for each in importlib.metadata.distributions():
            name = each.metadata["Name"] if each.metadata else None
            if name:  # a package that was removed by half has none
                found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), each.version or "0")  # the first is imported
        return found

    @property
    def cupy_packages(self) -> dict[str, str]:
        """{name: version} of every package that brings a module cupy: more than one is one too many."""
        return {name: version for name, version in sorted(self.packages.items()) if _CUPY.fullmatch(name)}

    @cached_property
    def cupy(self) -> Any:
        """The module, or the exception with which its import fails; None where it is not installed."""
        if not self.cupy_packages:
            return None
        from tiny_vllm.device.cupy_setup import import_cupy

        try:
            with warnings.catch_warnings():  # other checks say what CuPy warns of
                warnings.simplefilter("ignore")
                return import_cupy()
        except Exception as error:  # CuPy looks for CUDA at import and fails in many ways
            return error

    @property
    def cupy_imports(self) -> bool:
        return self.cupy is not None and not isinstance(self.cupy, Exception)

    @cached_property
    def cuda_error(self) -> str | None:
        """Why the GPU does not run a kernel; None when it does."""
        from tiny_vllm.doctor.kernel import run_kernel

        if not self.has_gpu or not self.cupy_imports:
            return "there is no GPU, or no CuPy"
        return run_kernel("cuda")


def ask_nvidia_smi(program: str) -> Driver:
    """Its answer as numbers. A GPU that has fallen off the bus can make it wait for ever: 20 seconds are enough."""
    try:
        command = [program, _QUERY, "--format=csv,noheader,nounits"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Driver(error=first_line(error))
    if done.returncode != 0:
        return Driver(error=first_line(done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}"))
    rows = [[field.strip() for field in line.split(",", 4)] for line in done.stdout.splitlines() if line.strip()]
    rows = [row for row in rows if len(row) == 5]
    return Driver(rows[0][0] if rows else "", tuple(_gpu(row) for row in rows))


def _gpu(row: list[str]) -> Gpu:
    _, capability, free, total, name = row
    return Gpu(name, _number(capability.replace(".", "")), _number(free), _number(total))


def _number(text: str) -> int:
    """0 for "[N/A]" and its like."""
    return int(text) if text.isdecimal() else 0


def mount_of(path: Path, table: Path = Path("/proc/self/mounts")) -> tuple[str, frozenset[str]]:
    """(file system's type, mount options) of the disk that a path is on; ("", {}) where the system does not say."""
    try:
        lines = [line.split() for line in table.read_text(errors="replace").splitlines()]
        whole = path.resolve()
    except OSError:
        return "", frozenset()
    mounts = [(Path(f[1].replace("\\040", " ")), f[2], f[3]) for f in lines if len(f) >= 4]
    inside = [mount for mount in mounts if whole.is_relative_to(mount[0])]
    if not inside:
        return "", frozenset()
    _, kind, options = max(inside, key=lambda mount: len(mount[0].parts))
    return kind, frozenset(options.split(","))
