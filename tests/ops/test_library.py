"""KernelLibrary: each file compiled once, with the options that it uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import DTYPES
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.errors import CompileError, UserError


class Recorder:
    """A device that compiles nothing and remembers what it was asked for."""

    def __init__(self) -> None:
        self.compiled: list[tuple[str, ...]] = []

    def RawModule(self, code: str, options: tuple[str, ...] = (), **settings: Any) -> Any:
        self.compiled.append(options)
        return self

    def get_function(self, name: str) -> str:
        return f"kernel {name}"


def library(device: Any, dtype: Any = np.float32, head_dim: int | None = 64) -> KernelLibrary:
    return KernelLibrary(device, dtype, head_dim)


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("attention.cu", ("-DSCALAR=__nv_bfloat16", "-DHEAD_DIM=64")),
        ("rms_norm.cu", ("-DSCALAR=__nv_bfloat16",)),  # one kernel for every head size, though dtype.cuh speaks of it
        ("argmax.cu", ()),  # logits are float32 in every model
    ],
)
def test_only_the_options_that_a_file_uses(file, options):
    device = Recorder()
    assert library(device, DTYPES["bfloat16"]).kernel(file, "f") == "kernel f"
    assert device.compiled == [options]


def test_a_file_is_compiled_once():
    device = Recorder()
    kernels = library(device)
    for _ in range(2):
        kernels.kernel("rope.cu", "rope"), kernels.kernel("rope.cu", "another"), kernels.kernel("embed.cu", "embed")
    assert len(device.compiled) == 2


def test_a_head_size_is_asked_for_by_name(device):
    with pytest.raises(CompileError, match="give -DHEAD_DIM=64"):
        library(device, head_dim=None).kernel("attention.cu", "attention")


def test_a_missing_file_is_named(device):
    with pytest.raises(UserError, match=r"there is no attentoin\.cu"):
        library(device).kernel("attentoin.cu", "attention")


def test_a_student_s_file_stands_in(device, tmp_path, monkeypatch):
    """work/embed.cu is taken instead of kernels/embed.cu, with our headers."""
    source = '#include "dtype.cuh"\nextern "C" __global__ void embed(scalar_t* out) { out[0] = scalar_t(7.0f); }\n'
    (tmp_path / "embed.cu").write_text(source, encoding="utf-8")
    monkeypatch.setenv("TINY_VLLM_WORK", str(tmp_path))
    out = device.asarray(np.zeros(1, np.float32))
    library(device).kernel("embed.cu", "embed")((1,), (1,), (out,))
    assert device.to_host(out)[0] == 7
