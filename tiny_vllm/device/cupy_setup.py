"""Imports CuPy, and says in one sentence why there is no GPU, what is missing or does not fit, and what mends it."""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from tiny_vllm.errors import DeviceError

INSTALL = "run `make install` in the checkout, or pip install cupy-cuda13x (cupy-cuda12x with a driver older than 580)"


def import_cupy() -> Any:
    """The module cupy, its kernel cache in a folder that can be written to."""
    if "cupy" not in sys.modules:  # it makes its cache folder when it is imported
        _move_unwritable_cache()
    import cupy

    if os.environ.get("TINY_VLLM_CHECK") == "1":
        cupy.cuda.set_allocator(None)  # no pool: compute-sanitizer then knows where each array ends
    return cupy


def why_no_cuda() -> str | None:
    """Why no CUDA device can be used here, and what to do; None when one can."""
    found = importlib.util.find_spec("cupy")
    if found is None or found.origin is None:  # a folder that happens to be called cupy has no origin
        return f"CuPy is not installed; {INSTALL}"
    try:
        cupy = import_cupy()
    except Exception as error:  # CuPy looks for CUDA at import and fails in many ways
        return f"CuPy cannot be imported ({_first_line(error)}); {_mend_import()}"
    return _why_no_device(cupy.cuda.runtime)


def _why_no_device(runtime: Any) -> str | None:
    driver = runtime.driverGetVersion()
    if driver == 0:
        return "there is no NVIDIA driver; install one"
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        needs = runtime.runtimeGetVersion()
        if driver // 1000 < needs // 1000:
            newer, older = _version(needs), _version(driver)
            return f"CuPy is built for CUDA {newer}, the driver is for {older}; update the driver or {INSTALL}"
        return f"CUDA says {_first_line(error)}; see what nvidia-smi says"
    if count == 0:
        return "the driver shows no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES"
    return None


def _mend_import() -> str:
    if (Path(sys.prefix) / "conda-meta").is_dir() and not os.environ.get("CONDA_PREFIX"):
        return "activate the conda environment first"
    return f"reinstall it: {INSTALL}"


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _version(number: int) -> str:
    """13020 is 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


# ---- CUDA's headers and compiler


def check_toolkit(cupy: Any) -> None:
    """DeviceError unless CUDA's compiler and its headers are there and of one major version.

    CuPy takes the headers from where cuda.pathfinder finds cudart's, and adds that folder to every compilation.
    """
    from cuda.pathfinder import find_nvidia_header_directory

    mend = 'pip install --upgrade "cuda-toolkit[cublas,cudart,nvrtc]=={}.*"'
    needs = cupy.cuda.runtime.runtimeGetVersion() // 1000
    try:
        major, minor = cupy.cuda.nvrtc.getVersion()
    except RuntimeError as error:
        raise DeviceError(f"CUDA's compiler is missing ({_first_line(error)}); {mend.format(needs)}") from None
    folder = find_nvidia_header_directory("cudart")
    missing = [name for name in ("cuda_runtime_api.h", "cuda_bf16.h", "cuda_fp16.h") if not _has(folder, name)]
    if missing:
        where = folder or "any place that CuPy searches"
        raise DeviceError(f"CUDA's headers are missing ({', '.join(missing)} in {where}); {mend.format(major)}")
    headers = header_version(Path(folder))
    if headers // 1000 != major:
        raise DeviceError(
            f"CUDA's headers are of version {_version(headers)} ({folder}), its compiler of {major}.{minor}; "
            f"make them one: {mend.format(major)}"
        )


def header_version(folder: Path) -> int:
    """CUDART_VERSION of the headers in a folder: 13020 is 13.2; 0 when they do not say."""
    found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", (folder / "cuda_runtime_api.h").read_text(errors="replace"))
    return int(found[1]) if found else 0


def _has(folder: str | None, name: str) -> bool:
    return folder is not None and (Path(folder) / name).is_file()


# ---- CuPy's kernel cache


def _move_unwritable_cache() -> None:
    """Point CuPy at a private temporary folder when its own cannot be written to."""
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache").expanduser()
    if _is_writable(folder):
        return
    private = tempfile.mkdtemp(prefix="tiny-vllm-cupy-")
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    os.environ["CUPY_CACHE_DIR"] = private
    warnings.warn(
        f"CuPy's cache {folder} cannot be written to; kernels are compiled anew in each run (CUPY_CACHE_DIR names "
        "another folder)",
        RuntimeWarning,
        stacklevel=3,
    )


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)  # over quota shows at the first block, not before
        return True
    except OSError:
        return False
