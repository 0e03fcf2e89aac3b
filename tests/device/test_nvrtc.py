"""Every .cu file compiles for each architecture and type promised, with no GPU: g++ takes what CUDA does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tiny_vllm.device import nvrtc
from tiny_vllm.device.source import (
    SCALARS,
    load_source,
    only_architecture,
    required_capability,
    scalar_options,
    strip_comments,
)
from tiny_vllm.errors import CompileError, DeviceError

ROOT = Path(__file__).parents[2]
OVERLAY = (ROOT / "chapters", ROOT / "kernels")
FILES = sorted(
    str(path.relative_to(folder))
    for folder in OVERLAY
    for path in folder.rglob("*.cu")
    if path.parent.name != "stand_ins"  # lines for the middle of a kernel
)
WRONG_ON_PURPOSE = ("/faults/", "/mutants/")  # these compile too, but may spill

ARCHITECTURES = (75, 80, 90)
TYPES = ("float32", "bfloat16", "float16")


@pytest.fixture(scope="module", autouse=True)
def compiler():
    try:
        nvrtc.compile_cuda("__global__ void nothing() {}")
    except DeviceError as error:
        pytest.skip(str(error))


def variants(code: str) -> Iterator[tuple[int | str, tuple[str, ...]]]:
    """(architecture, options) of all compilations of a source; what a file does not use is not varied.

    What a line `requires: sm_80, 16-bit SCALAR` leaves out is not compiled; `requires: sm_90a` leaves "90a" alone.
    """
    types: tuple[Any, ...] = TYPES if re.search(r"\bSCALAR\b", strip_comments(code)) else TYPES[:1]
    if re.search(r"\brequires:.*\b16-bit SCALAR", code):
        types = types[1:]
    only = only_architecture(code)
    architectures = [only] if only else [each for each in ARCHITECTURES if each >= required_capability(code)]
    for dtype in types:
        for architecture in architectures:
            yield architecture, (*scalar_options(dtype), "-DHEAD_DIM=64")
        if re.search(r"\bHEAD_DIM\b", strip_comments(code)):
            yield architectures[-1], (*scalar_options(dtype), "-DHEAD_DIM=128")


@pytest.mark.parametrize("file", FILES)
def test_every_kernel_compiles_without_spills(file: str):
    code = load_source(file, OVERLAY)
    print()
    for architecture, options in variants(code):
        report = nvrtc.compile_cuda(code, file, architecture, options)
        assert report.kernels, f"{file} has no kernel"
        for kernel, usage in report.kernels.items():
            what = f"{kernel} sm_{architecture} {' '.join(options)}"
            print(
                f"{what:66} {usage.registers:3} registers {usage.shared_bytes:5} B shared {usage.spill_bytes} B spilled"
            )
            assert usage.spill_bytes == 0 or any(each in f"/{file}" for each in WRONG_ON_PURPOSE), what


def test_there_are_kernels_to_compile():
    assert any(file == "rms_norm.cu" for file in FILES)


def test_what_a_file_requires_is_honoured():
    def compiled(text: str) -> set[tuple[int | str, str]]:
        return {(architecture, options[0]) for architecture, options in variants(text)}

    everything = compiled("scalar_t SCALAR;")
    assert len(everything) == 9
    assert len(compiled("// requires: sm_80\nSCALAR")) == 6
    assert compiled("// requires: sm_80, 16-bit SCALAR\nSCALAR") == {
        each for each in everything if each[0] != 75 and each[1] != "-DSCALAR=float"
    }
    assert compiled("// requires: sm_90a\nSCALAR") == {("90a", f"-DSCALAR={each}") for each in SCALARS.values()}
    heads = [options[-1] for _, options in variants("// requires: sm_90a\nHEAD_DIM")]
    assert heads == ["-DHEAD_DIM=64", "-DHEAD_DIM=128"]
    assert {a for a, _ in compiled(load_source("paged_prefill.cu", OVERLAY))} == {80, 90}


def test_usage_is_measured():
    code = """
    extern "C" __global__ void light(float* x) { x[threadIdx.x] = 1.0f; }
    extern "C" __global__ void heavy(float* x, int n) {
        __shared__ float tile[256];
        tile[threadIdx.x] = x[n * threadIdx.x];
        __syncthreads();
        x[threadIdx.x] = tile[255 - threadIdx.x];
    }
    extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* x, int n) {
        float v[96];
        #pragma unroll
        for (int j = 0; j < 96; j++) v[j] = x[j * n + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int j = 0; j < 96; j++) x[j * n + threadIdx.x] = v[95 - j] * v[j];
    }
    """
    report = nvrtc.compile_cuda(code, "usage.cu", 80)
    light, heavy, spills = (report.kernels[name] for name in ("light", "heavy", "spills"))
    assert report.cubin_bytes > 1000
    assert 0 < light.registers < heavy.registers and light.shared_bytes == light.spill_bytes == light.stack_bytes == 0
    assert heavy.shared_bytes == 1024
    assert spills.spill_bytes > 0 and spills.stack_bytes > 0 and spills.registers <= 32


def test_an_error_names_the_readers_file_and_line():
    with pytest.raises(CompileError, match=r'(?s)mine\.cu\(3\): error: identifier "foo" is undefined'):
        nvrtc.compile_cuda("\n__global__ void k(float* x) {\n  x[0] = foo; }", "mine.cu")
    with pytest.raises(CompileError, match=r'work/a\.cu\(8\): error: identifier "foo"'):
        nvrtc.compile_cuda('#line 7 "work/a.cu"\n__global__ void k(float* x) {\n  x[0] = foo; }', "mine.cu")


def test_an_error_in_a_header_names_the_header(tmp_path: Path):
    (tmp_path / "a.cu").write_text('#include "b.cuh"\n__global__ void k(float* x) { x[0] = twice(x[1]); }\n')
    (tmp_path / "b.cuh").write_text("#pragma once\n\n__device__ float twice(float x) { return 2 * y; }\n")
    with pytest.raises(CompileError, match=rf'{tmp_path.name}/b\.cuh\(3\): error: identifier "y"'):
        nvrtc.compile_cuda(load_source("a.cu", [tmp_path]))


@pytest.mark.parametrize("body", ["x[0] = INFINITY;", "x[0] = NAN;", "x[0] = std::max(x[1], x[2]);"])
def test_what_only_a_host_compiler_knows_is_refused(body: str):
    with pytest.raises(CompileError):
        nvrtc.compile_cuda(f"__global__ void k(float* x) {{ {body} }}")


def test_the_same_in_cuda_is_taken():
    code = "#include <math_constants.h>\n__global__ void k(float* x) { x[0] = fmaxf(CUDART_INF_F, x[1]); }"
    assert nvrtc.compile_cuda(code).cubin_bytes > 0


def test_instructions_of_one_architecture_alone():
    code = '__global__ void k() { asm volatile("wgmma.fence.sync.aligned;"); }'
    assert nvrtc.compile_cuda(code, architecture="90a").kernels
    with pytest.raises(CompileError, match=r"wgmma\.fence' not supported on \.target 'sm_90'"):
        nvrtc.compile_cuda(code, architecture=90)


def test_an_unknown_architecture_or_option():
    with pytest.raises(CompileError, match=r"(?i)architecture|invalid"):
        nvrtc.compile_cuda("", architecture=13)
    with pytest.raises(CompileError, match=r"no-such-option"):
        nvrtc.compile_cuda("", options=("--no-such-option",))
