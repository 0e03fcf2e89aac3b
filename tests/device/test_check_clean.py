"""Right kernels are clean: a whole forward of a tiny checkpoint, and the kernels that it does not launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chapters.ch00_hello_gpu import stage as hello
from chapters.ch09_kv_cache.stage import KVCacheOps
from tests.conftest import DATA
from tests.ops.cases import DTYPES, SETS, Shape, integers
from tests.ops.running import Running, prompts
from tiny_vllm.device.emulator import Emulator
from tiny_vllm.device.emulator.check.run import CheckedRunner
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.weights import load_weights
from tiny_vllm.ops.argmax import Argmax

TINY = DATA / "tiny" / "tiny"


@pytest.fixture(params=["forward", "reverse"])
def device(request, monkeypatch) -> Emulator:
    """An emulator on which every kernel is checked, in either order of threads."""
    monkeypatch.setenv("TINY_VLLM_CHECK", "1")
    monkeypatch.setenv("TINY_VLLM_THREAD_ORDER", request.param)
    return Emulator()


@pytest.fixture
def launched(monkeypatch) -> set[str]:
    """The names of the kernels that were checked."""
    names: set[str] = set()
    run = CheckedRunner.run

    def noted(self: Any, *args: Any) -> None:
        names.add(self._name)
        run(self, *args)

    monkeypatch.setattr(CheckedRunner, "run", noted)
    return names


@pytest.mark.parametrize("name", ["tuned", "course", "invariant"])
def test_a_whole_forward(name, device, launched):
    """Two prompts in one step, then a token each: the logits are right, and nothing is found."""
    golden = prompts(TINY)[1:3]
    config = ModelConfig.from_folder(TINY)
    weights, dtype = load_weights(TINY, config, device, np.dtype(np.float32)), np.dtype(np.float32)
    lengths = [len(p["ids"]) + 2 for p in golden]
    running = Running(device, config, weights, SETS[name](device, config, dtype), lengths)
    logits = running.step([p["ids"] for p in golden])
    np.testing.assert_allclose(logits, [p["logits"] for p in golden], rtol=0, atol=1e-3)
    tokens, _ = running.greedy(logits, 2)
    np.testing.assert_array_equal(tokens, [p["tokens"][:2] for p in golden])
    turning = {"rope_kv"} if name == "tuned" else {"rope", "write_kv"}
    assert turning | {"rms_norm_tree" if name == "course" else "rms_norm", "silu_mul"} <= launched


@pytest.mark.parametrize("gemm", ["naive", "tiled"])
def test_products_by_the_course_s_own_kernels(gemm, device, launched):
    golden, config = prompts(TINY)[1], ModelConfig.from_folder(TINY)
    weights, dtype = load_weights(TINY, config, device, np.dtype(np.float32)), np.dtype(np.float32)
    running = Running(device, config, weights, KVCacheOps(device, config, dtype, gemm), [len(golden["ids"])])
    np.testing.assert_allclose(running.step([golden["ids"][:5]]).shape, (1, config.vocab_size))
    assert {f"gemm_{gemm}", f"gemm_{gemm}_float"} & launched


def test_kernels_outside_the_forward(device, launched, rng):
    dtype = np.dtype(np.float32)
    assert hello.vector_add(device, np.ones(300), np.ones(300)).tolist() == [2] * 300
    hello.which_thread(device, 200)
    ops = KVCacheOps(device, Shape(), dtype)
    table, tokens = device.asarray(rng.normal(size=(9, 40)), dtype), integers(device, [3, 8, 0])
    for rung in ("one_thread", "one_block"):
        ops.embed(tokens, table, rung=rung)
    x, weight = device.asarray(rng.normal(size=(3, 70)), dtype), device.asarray(rng.normal(size=70), dtype)
    for rung in ("one_thread", "tree", "warp"):
        ops.rms_norm(x, weight, 1e-5, rung=rung, threads=64)  # type: ignore[arg-type]
    ops.add_residual(x, device.asarray(rng.normal(size=(3, 70)), dtype))
    assert ops.argmax(x).tolist() == Argmax(device)(x).tolist() == x.argmax(axis=1).tolist()
    assert launched >= {"vector_add", "which_thread", "embed_one_thread", "embed", "add_residual", "argmax"} | {
        f"rms_norm_{rung}" for rung in ("one_thread", "tree", "warp")
    }


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_sixteen_bits(kind, device):
    """Two elements share a word of the shadow."""
    golden, config = prompts(TINY)[1], ModelConfig.from_folder(TINY)
    weights = load_weights(TINY, config, device, DTYPES[kind])
    running = Running(device, config, weights, SETS["tuned"](device, config, DTYPES[kind]), [len(golden["ids"])])
    np.testing.assert_allclose(running.step([golden["ids"]])[0], golden["logits"], rtol=0, atol=0.5)
