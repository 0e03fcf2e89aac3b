"""Checks of the GPU's side, from the driver up to a kernel that runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tiny_vllm.doctor.cupy_packages import cuda_of, toolkit, upgrade
from tiny_vllm.doctor.finding import Finding, first_line, note, ok, pip, problem, set_variable
from tiny_vllm.doctor.machine import OLDEST_CUDA_12, Machine

OLDEST_CAPABILITY, BFLOAT16_CAPABILITY = 75, 80
HEADERS = ("vector_types.h", "cuda_runtime_api.h", "cuda_bf16.h", "cuda_fp16.h")
ENOUGH_GPU_MIB = 1000
USE_EMULATOR = set_variable("TINY_VLLM_DEVICE", "emulator")


def check_driver(machine: Machine) -> Finding:
    driver = machine.driver
    if driver is None:
        return note("there is no NVIDIA driver (no nvidia-smi): kernels run on the emulator")
    if driver.error:
        command = "sudo reboot" if "mismatch" in driver.error else "nvidia-smi"
        return note(f"nvidia-smi fails: {driver.error}", command)
    if not driver.gpus:
        return note("the NVIDIA driver shows no GPU: kernels run on the emulator", "nvidia-smi -L")
    if not driver.cuda:
        return note(
            f"the NVIDIA driver {driver.version} is older than CUDA 12 needs ({OLDEST_CUDA_12}): kernels run on the "
            "emulator until it is updated",
            "sudo ubuntu-drivers install" if Path("/usr/bin/ubuntu-drivers").exists() else None,
        )
    return ok(f"the NVIDIA driver {driver.version} runs programs of CUDA {driver.cuda}")


def check_gpu(machine: Machine) -> Finding | None:
    if machine.driver is None or not machine.driver.gpus:
        return None
    gpu, count = machine.driver.gpus[0], len(machine.driver.gpus)
    major, minor = divmod(gpu.compute_capability, 10)
    sentence = f"{gpu.name}, compute capability {major}.{minor}" + (f", the first of {count}" if count > 1 else "")
    if gpu.compute_capability < OLDEST_CAPABILITY:
        return problem(f"{sentence}: kernels need 7.5 (Turing) or newer", USE_EMULATOR)
    if gpu.compute_capability < BFLOAT16_CAPABILITY:
        return note(f"{sentence}: it has no bfloat16, so models run in float16")
    return ok(sentence)


def check_gpu_memory(machine: Machine) -> Finding | None:
    if machine.driver is None or not machine.driver.gpus:
        return None
    gpu = machine.driver.gpus[0]
    sentence = f"{gpu.free_mib} of {gpu.total_mib} MiB of the GPU's memory are free"
    if gpu.total_mib and gpu.free_mib < ENOUGH_GPU_MIB:
        return note(f"{sentence}: another process holds the rest, such as a notebook's kernel", "nvidia-smi")
    return ok(sentence) if gpu.total_mib else None


def check_cupy_import(machine: Machine) -> Finding | None:
    if machine.cupy is None:
        return None
    if isinstance(machine.cupy, Exception):
        from tiny_vllm.device.cupy_setup import why_no_cuda

        sentence, _, mend = (why_no_cuda() or first_line(machine.cupy)).rpartition("; ")
        if "conda" in mend:
            return problem(f"{sentence}: the conda environment is not activated", _activate())
        return problem(sentence, pip(f"install --force-reinstall --no-deps {' '.join(machine.cupy_packages)}"))
    return ok(f"CuPy {machine.cupy.__version__} is imported from {Path(machine.cupy.__file__).parent}")


def _activate() -> str:
    return f"conda activate {sys.prefix}"


def check_headers(machine: Machine) -> Finding | None:
    """CuPy compiles with the headers that cuda.pathfinder finds beside cudart; all must come from there."""
    if not machine.cupy_imports:
        return None
    from cuda.pathfinder import find_nvidia_header_directory

    folder = find_nvidia_header_directory("cudart")
    mend = toolkit(cuda_of(machine.cupy_packages) or 13)
    missing = [name for name in HEADERS if folder is None or not (Path(folder) / name).is_file()]
    if missing:
        where = f"from {folder}" if folder else "in every place that CuPy searches"
        return problem(f"CUDA's headers are missing {where}: {', '.join(missing)}", mend)
    return _one_version(Path(folder), machine, mend)


def _one_version(folder: Path, machine: Machine, mend: str) -> Finding:
    from tiny_vllm.device.cupy_setup import header_version

    number = header_version(folder)
    version = (number // 1000, number % 1000 // 10)
    named = f"{version[0]}.{version[1]}"
    if bundled := bundled_headers(Path(machine.cupy.__file__).parent):
        return problem(
            f"CuPy brings its own cuda_fp16.h of CUDA {bundled}, and cuda_bf16.h is of CUDA {named} ({folder}): mixed "
            "headers do not compile",
            upgrade(next(iter(machine.cupy_packages))),
        )
    compiler = nvrtc_version(machine)
    if isinstance(compiler, tuple) and compiler[0] != version[0]:
        compiler_named = ".".join(map(str, compiler))
        return problem(f"CUDA's headers are of version {named} ({folder}), its compiler is of {compiler_named}", mend)
    return ok(f"CUDA's headers are of version {named}, from {folder}")


def bundled_headers(cupy_folder: Path) -> str | None:
    """The CUDA version of the half-precision headers that CuPy up to 13 carried along, "12.2"; None without."""
    found = sorted(cupy_folder.glob("_core/include/cupy/_cuda/cuda-*/cuda_fp16.h*"))
    return found[-1].parent.name.removeprefix("cuda-") if found else None


def nvrtc_version(machine: Machine) -> tuple[int, int] | Exception:
    try:
        major, minor = machine.cupy.cuda.nvrtc.getVersion()
        return int(major), int(minor)
    except Exception as error:  # CuPy looks for the library when it is first asked
        return error


def check_nvrtc(machine: Machine) -> Finding | None:
    if not machine.cupy_imports:
        return None
    version = nvrtc_version(machine)
    if isinstance(version, Exception):
        mend = toolkit(cuda_of(machine.cupy_packages) or 13)
        return problem(f"CUDA's compiler (NVRTC) cannot be loaded: {first_line(version)}", mend)
    return ok(f"CUDA's compiler (NVRTC) is of version {version[0]}.{version[1]}")


def check_cuda_kernel(machine: Machine) -> Finding | None:
    if not machine.has_gpu or not machine.cupy_imports:
        return None
    if error := machine.cuda_error:
        # Errors of ours end in what mends them.
        command = re.search(r"; ((?:pip|make|conda) .*)$", error)
        return problem(f"a kernel does not run on the GPU: {error}", command[1] if command else USE_EMULATOR)
    return ok("a kernel compiles and runs on the GPU")


def check_cublas(machine: Machine) -> Finding | None:
    from tiny_vllm.doctor.kernel import run_gemm

    if not machine.has_gpu or not machine.cupy_imports or machine.cuda_error:
        return None
    if error := run_gemm():
        return problem(
            f"cuBLAS does not multiply: {error}", toolkit(cuda_of(machine.cupy_packages) or 13, "cublas,cudart,nvrtc")
        )
    return ok("cuBLAS multiplies")
