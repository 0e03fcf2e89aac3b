"""Which device a name gives, and what is said when there is none."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tiny_vllm.device as device_module
from tiny_vllm.device import RawKernel, RawModule, cupy_setup, get_device
from tiny_vllm.errors import DeviceError, UserError


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device_module, "_make", cache(device_module._make.__wrapped__))  # a GPU may be made already
    monkeypatch.setattr(device_module, "_why_no_cuda", lambda: "there is no NVIDIA driver; install one")
    monkeypatch.delenv("TINY_VLLM_DEVICE", raising=False)


def test_auto_is_the_emulator_without_a_gpu(no_cuda):
    assert get_device().name == "emulator"
    assert get_device("auto") is get_device("emulator")


def test_cuda_that_is_not_there(no_cuda, monkeypatch):
    with pytest.raises(DeviceError, match=r"cuda is not available: there is no NVIDIA driver.*choose the emulator"):
        get_device("cuda")
    monkeypatch.setenv("TINY_VLLM_DEVICE", "cuda")
    with pytest.raises(DeviceError, match="cuda is not available"):
        get_device()
    assert get_device("emulator").name == "emulator"  # a name beats the variable


def test_unknown_names(no_cuda, monkeypatch):
    with pytest.raises(UserError, match="no device 'gpu'; choose one of auto, cuda, emulator"):
        get_device("gpu")
    monkeypatch.setenv("TINY_VLLM_DEVICE", "gpu")
    with pytest.raises(UserError, match=r"'gpu' \(from TINY_VLLM_DEVICE\)"):
        get_device()


def test_module_level_kernels_use_the_default_device(no_cuda):
    code = 'extern "C" __global__ void add(float* x, float y) { x[threadIdx.x] += y; }'
    for kernel in (RawKernel(code, "add"), RawModule(code).get_function("add")):
        x = get_device().asarray(np.arange(5, dtype=np.float32))
        kernel((1,), (5,), (x, 0.5))
        np.testing.assert_array_equal(get_device().to_host(x), np.arange(5) + 0.5)


def runtime(driver: int, needs: int = 13020, count: int = 1, error: str | None = None) -> SimpleNamespace:
    """What cupy.cuda.runtime would say."""

    def get_device_count() -> int:
        if error:
            raise RuntimeError(error)
        return count

    return SimpleNamespace(
        CUDARuntimeError=RuntimeError,
        driverGetVersion=lambda: driver,
        runtimeGetVersion=lambda: needs,
        getDeviceCount=get_device_count,
    )


INSUFFICIENT = "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (runtime(0), "no NVIDIA driver"),
        (
            runtime(12040, error=INSUFFICIENT),
            r"built for CUDA 13\.2, the driver is for 12\.4; update the driver or run",
        ),
        (
            runtime(13020, error="cudaErrorNoDevice: no CUDA-capable device is detected"),
            r"cudaErrorNoDevice.*nvidia-smi",
        ),
        (runtime(13020, count=0), "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_why_there_is_no_device(found, sentence):
    assert re.search(sentence, str(cupy_setup._why_no_device(found)))


def test_a_device_that_is_there():
    assert cupy_setup._why_no_device(runtime(13000)) is None


def test_without_cupy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "CuPy is not installed; run `make install`" in str(cupy_setup.why_no_cuda())


def test_a_cupy_that_cannot_be_imported(monkeypatch, tmp_path):
    def fail():
        raise AttributeError("'NoneType' object has no attribute 'startswith'")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin="there"))
    monkeypatch.setattr(cupy_setup, "import_cupy", fail)
    assert "cannot be imported ('NoneType' object has no attribute 'startswith')" in str(cupy_setup.why_no_cuda())
    (tmp_path / "conda-meta").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    assert "activate the conda environment" in str(cupy_setup.why_no_cuda())


# ---- headers and compiler


def toolkit(monkeypatch, folder: Path | None, compiler: tuple[int, int]) -> SimpleNamespace:
    pathfinder = SimpleNamespace(find_nvidia_header_directory=lambda name: None if folder is None else str(folder))
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(pathfinder=pathfinder))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    nvrtc = SimpleNamespace(getVersion=lambda: compiler)
    return SimpleNamespace(cuda=SimpleNamespace(nvrtc=nvrtc, runtime=runtime(13020)))


def headers(folder: Path, version: int) -> Path:
    (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    for name in ("cuda_bf16.h", "cuda_fp16.h"):
        (folder / name).write_text("")
    return folder


def test_headers_and_compiler_of_one_version(monkeypatch, tmp_path):
    cupy_setup.check_toolkit(toolkit(monkeypatch, headers(tmp_path, 13000), (13, 2)))


def test_headers_of_another_version_name_both(monkeypatch, tmp_path):
    with pytest.raises(DeviceError, match=r"of version 12\.9 .*of 13\.2; make them one: pip install.*==13\.\*"):
        cupy_setup.check_toolkit(toolkit(monkeypatch, headers(tmp_path, 12090), (13, 2)))


def test_missing_headers(monkeypatch, tmp_path):
    with pytest.raises(DeviceError, match=r"headers are missing .*any place that CuPy searches.; pip install"):
        cupy_setup.check_toolkit(toolkit(monkeypatch, None, (13, 2)))
    (headers(tmp_path, 13000) / "cuda_bf16.h").unlink()
    with pytest.raises(DeviceError, match=r"headers are missing \(cuda_bf16\.h in "):
        cupy_setup.check_toolkit(toolkit(monkeypatch, tmp_path, (13, 2)))


# ---- CuPy's cache folder


def test_a_cache_that_can_be_written_to_stays(monkeypatch, tmp_path, recwarn):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "new"))
    cupy_setup._move_unwritable_cache()
    assert os.environ["CUPY_CACHE_DIR"] == str(tmp_path / "new") and not recwarn


def test_a_cache_that_cannot_be_written_to_moves_with_one_warning(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")  # a folder cannot be made below a file, whoever asks
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match=r"file/cache cannot be written to") as warned:
        cupy_setup._move_unwritable_cache()
    moved = Path(os.environ["CUPY_CACHE_DIR"])
    assert moved.is_dir() and moved.stat().st_mode & 0o077 == 0 and len(warned) == 1
