"""Checks of CuPy's packages: one of them, of a version that works, and no other CUDA beside it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tiny_vllm.doctor.finding import Finding, note, ok, pip, problem
from tiny_vllm.doctor.machine import OLDEST_CUDA_13, Machine

BOUNDS = ">=14,!=14.1.0,<15"  # pyproject.toml's; a test compares them
# Packages without a CUDA version in their name, whose own version is CUDA's.
_VERSIONED = ("cuda-bindings", "cuda-python", "cuda-toolkit", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime")


def cuda_of(packages: Mapping[str, str]) -> int:
    """12 for cupy-cuda12x; 0 where the name does not say (conda's cupy)."""
    found = [int(match[1]) for name in packages if (match := re.fullmatch(r"cupy-cuda(\d\d)x", name))]
    return found[0] if found else 0


def toolkit(cuda: int, parts: str = "cudart,nvrtc") -> str:
    """The command that gets parts of one CUDA version, those too of which some files are lost."""
    return pip(f'install --force-reinstall "cuda-toolkit[{parts}]=={cuda}.*"')


def install(cuda: int) -> str:
    """The command that gets CuPy and its toolkit."""
    return pip(f'install "cupy-cuda{cuda}x{BOUNDS}" "cuda-toolkit[cublas,cudart,nvrtc]=={cuda}.*"')


def upgrade(name: str) -> str:
    """The command that gets a version of an installed CuPy package that works."""
    return pip(f'install --upgrade "{name}{BOUNDS}"')


def best_cuda(machine: Machine) -> int:
    return (machine.driver.cuda if machine.driver else 0) or 13


def check_cupy(machine: Machine) -> Finding:
    packages = machine.cupy_packages
    if not packages:
        if machine.has_gpu and machine.driver and machine.driver.cuda:
            return note("CuPy is not installed: the GPU is not used", install(machine.driver.cuda))
        return ok("CuPy is not installed, and without a GPU nothing needs it")
    if len(packages) > 1:
        return _several(packages, machine)
    ((name, version),) = packages.items()
    cuda = cuda_of(packages)
    if finding := _wrong_version(name, version):
        return finding
    if cuda == 13 and machine.driver and machine.driver.gpus and machine.driver.cuda < 13:
        sentence = f"{name} needs driver {OLDEST_CUDA_13} or newer, and this one is {machine.driver.version}"
        return problem(sentence, f"{pip(f'uninstall -y {name}')} && {install(12)}")
    return ok(f"{name} {version}")


def _several(packages: Mapping[str, str], machine: Machine) -> Finding:
    """Both write the same folder cupy/: to remove one breaks the other, so all go and one comes back."""
    named = " and ".join(f"{name} {version}" for name, version in packages.items())
    sentence = f"{len(packages)} packages bring CuPy and write over each other's files: {named}"
    conda = "cupy" in packages and (Path(sys.prefix) / "conda-meta").is_dir()
    remove = pip(f"uninstall -y {' '.join(name for name in packages if not (conda and name == 'cupy'))}")
    again = "conda install --force-reinstall cupy" if conda else install(best_cuda(machine))
    return problem(sentence, f"{remove} && {again}")


def _wrong_version(name: str, version: str) -> Finding | None:
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    mend = upgrade(name)
    if name == "amd-cupy" or "rocm" in name:
        return problem(f"{name} is CuPy for AMD's GPUs, on which tiny-vllm does not run", pip(f"uninstall -y {name}"))
    if re.fullmatch(r"cupy-cuda(\d{3}|11x)", name):
        return problem(f"{name} is for a CUDA older than 12", f"{pip(f'uninstall -y {name}')} && {install(13)}")
    if numbers == (14, 1, 0):
        return problem(f"{name} 14.1.0 needs pytest at run time", mend)
    if numbers < (14,):
        return problem(f"{name} {version} is older than 14, which finds CUDA's headers and libraries by itself", mend)
    if numbers >= (15,):
        return note(f"{name} {version} is newer than any that was tried (14)", mend)
    return None


def check_other_cuda(machine: Machine) -> Finding | None:
    """CuPy takes the first compiler and headers that it finds, of whatever version."""
    cuda = cuda_of(machine.cupy_packages)
    if len(machine.cupy_packages) != 1 or not cuda:
        return None
    others = {name: version for name, version in machine.packages.items() if _is_other(name, version, cuda)}
    if not others:
        return ok(f"every CUDA package is of CUDA {cuda}")
    named = " and ".join(f"{name} {version}" for name, version in sorted(others.items()))
    needed = f'"cuda-toolkit[cublas,cudart,nvrtc]=={cuda}.*"'
    if core := machine.packages.get("cuda-core"):
        named, needed = f"{named} (and cuda-core {core})", f'{needed} "cuda-core[cu{cuda}]"'
    remove = pip(f"uninstall -y {' '.join(sorted(others))}")
    return problem(
        f"{next(iter(machine.cupy_packages))} stands beside {named}: CuPy takes the first CUDA that it finds",
        f"{remove} && {pip(f'install --upgrade {needed}')}",
    )


def _is_other(name: str, version: str, cuda: int) -> bool:
    """Names that end in -cu12 (PyTorch brings them) do no harm: they lie in folders that come after CUDA 13's."""
    return name in _VERSIONED and version.partition(".")[0] != str(cuda)
