"""Checks of Python, the operating system, the conda environment, memory and optional packages."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import sys
from pathlib import Path

from tiny_vllm.doctor.finding import Finding, note, ok, pip, problem
from tiny_vllm.doctor.machine import Machine

OLDEST_PYTHON = (3, 10)
NEEDED = ("filelock", "huggingface_hub", "jinja2", "ml_dtypes", "numpy", "safetensors", "tokenizers", "tqdm")
NOTEBOOKS = ("ipykernel", "jupyterlab", "jupytext", "matplotlib", "nbval")
ENOUGH_MEMORY = 1_000_000_000  # bytes: the built-in model in float32, its 16-bit copy, the cache
_KERNEL_RELEASE = Path("/proc/sys/kernel/osrelease")


def check_python(machine: Machine) -> Finding:
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return problem(f"Python {version} is older than 3.10", "make PYTHON=python3.11 install")
    if sys.maxsize < 2**32:
        return problem(f"Python {version} is a 32-bit program, and models need 64 bits")
    return ok(f"Python {version}")


def check_packages(machine: Machine) -> Finding:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return problem(f"Python packages are missing: {', '.join(missing)}", pip(f"install {' '.join(missing)}"))
    versions = [f"{name} {machine.packages.get(name.replace('_', '-'), '?')}" for name in NEEDED]
    return ok(", ".join(versions))


def check_system(machine: Machine) -> Finding:
    system, cpu = platform.system(), platform.machine()
    if system == "Windows":
        return problem("Windows itself is not supported; the Linux inside it, WSL2, is the way", "wsl --install")
    if system == "Darwin":
        return note(f"macOS on {cpu}: the emulator is written for it and has not been run there; CUDA has no macOS")
    release = _kernel_release().lower()
    if "microsoft" in release:
        if "wsl2" not in release:
            return note("WSL 1: not tried; version 2 is a real Linux and reaches the GPU", "wsl --set-version Ubuntu 2")
        return note("WSL2: not tried; NVIDIA's driver belongs into Windows, none into the Linux inside")
    if cpu in ("aarch64", "arm64"):
        return note("Linux on AArch64: the emulator is tested under QEMU, not on a chip, and the GPU's side not at all")
    if system != "Linux" or cpu != "x86_64":
        return note(f"{system} on {cpu}: not tried")
    return ok(f"{system} on {cpu}")


def _kernel_release() -> str:
    try:
        return _KERNEL_RELEASE.read_text().strip()
    except OSError:
        return platform.release()


def check_conda(machine: Machine) -> Finding | None:
    """CuPy from conda finds CUDA by CONDA_PREFIX, which only `conda activate` sets."""
    if not (Path(sys.prefix) / "conda-meta").is_dir():
        return None
    active = os.environ.get("CONDA_PREFIX")
    if not active:
        return problem(
            f"this is the Python of the conda environment {sys.prefix}, which is not activated: CuPy may not find CUDA",
            f"conda activate {sys.prefix}",
        )
    if Path(active).resolve() != Path(sys.prefix).resolve():
        return problem(
            f"this is the Python of the conda environment {sys.prefix}, while {active} is the active one: "
            "CuPy would take the CUDA of the other",
            f"conda activate {sys.prefix}",
        )
    return ok(f"the conda environment {sys.prefix} is active")


def check_memory(machine: Machine) -> Finding:
    from tiny_vllm.device.emulator import Emulator

    free, total = Emulator().memory_info()
    sentence = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB of memory are free"
    if free < ENOUGH_MEMORY:
        return note(f"{sentence}, and the built-in model takes about 1 GB", "ps aux --sort=-rss | head")
    return ok(sentence)


def check_settings(machine: Machine) -> Finding:
    """Reading them raises what is wrong with them."""
    from tiny_vllm.device.emulator.watchdog import default_timeout
    from tiny_vllm.device.emulator.workers import default_workers

    workers, timeout = default_workers(), default_timeout()
    threads = "1 thread" if workers == 1 else f"{workers} threads"
    return ok(f"the emulator runs on {threads}; a launch may take {timeout:g} s")


def check_notebooks(machine: Machine) -> Finding:
    missing = [name for name in NOTEBOOKS if importlib.util.find_spec(name) is None]
    if missing:
        checkout = Path(__file__).parents[2]
        where = "." if checkout == Path.cwd() else str(checkout)
        editable = f"install -e {shlex.quote(f'{where}[notebooks]')}"
        install = editable if (checkout / "pyproject.toml").is_file() else f"install {' '.join(NOTEBOOKS)}"
        return note(f"notebooks need {', '.join(missing)}", pip(install))
    return ok("what notebooks need is installed")
