"""Checks of the emulator: a C++ compiler, and a kernel that it compiles and runs."""

from __future__ import annotations

import os
import platform

from tiny_vllm.cache import cache_root, writable_folder
from tiny_vllm.doctor.finding import Finding, Status, ok, pip, problem, set_variable
from tiny_vllm.doctor.folders import elsewhere
from tiny_vllm.doctor.kernel import run_kernel
from tiny_vllm.doctor.machine import Machine, mount_of
from tiny_vllm.errors import DeviceError


def check_compiler(machine: Machine) -> Finding:
    from tiny_vllm.device.emulator.compiler import find_compiler

    try:
        compiler = find_compiler()
    except DeviceError as error:
        sentence = str(error).partition(";")[0].partition(": install")[0]  # what mends it is the command
        return problem(sentence, "unset TINY_VLLM_CXX" if os.environ.get("TINY_VLLM_CXX") else install())
    if compiler.major == 0:
        return problem(f"{' '.join(compiler.command)} does not say its version ({compiler.version!r})", install())
    return ok(f"{compiler.description}: {compiler.version}")


def install() -> str:
    """How a C++ compiler gets onto this system."""
    if platform.system() == "Darwin":
        return "xcode-select --install"
    known = {"debian": "sudo apt install g++", "fedora": "sudo dnf install gcc-c++", "arch": "sudo pacman -S gcc"}
    try:
        release = platform.freedesktop_os_release()
    except (OSError, AttributeError):
        release = {}
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    return next((known[name] for name in names if name in known), pip("install ziglang"))


def check_emulator(machine: Machine) -> Finding | None:
    if check_compiler(machine).status is Status.PROBLEM:
        return None
    error = run_kernel("emulator")
    if error is None:
        return ok("a kernel compiles and runs on the emulator")
    if "noexec" in mount_of(writable_folder(cache_root() / "emulator"))[1]:
        sentence = f"{cache_root()} is on a disk mounted noexec, from which no compiled kernel can be loaded"
        return problem(sentence, set_variable("TINY_VLLM_CACHE", elsewhere()))
    command = install() if "does not compile" in error or "compiler" in error else None
    return problem(f"a kernel does not run on the emulator: {error}", command)
