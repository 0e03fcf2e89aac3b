"""What a refusal for want of memory names can be had, on a GPU whose memory is counted."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import numpy as np
import pytest

from tests.conftest import DATA
from tiny_vllm.device.emulator import Emulator
from tiny_vllm.engine.engine_args import EngineArgs
from tiny_vllm.engine.llm_engine import LLMEngine
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.models.weights import load_weights
from tiny_vllm.ops import make_ops

FOLDER = DATA / "tiny" / "tiny"


class SmallGPU(Emulator):
    """An emulator that is taken for a GPU, and whose arrays take what they take of `total` bytes."""

    name = "cuda"

    def __init__(self, total: int) -> None:
        super().__init__()
        self.total, self.used = total, 0

    def empty(self, shape: Any, dtype: Any) -> Any:
        return self._counted(super().empty(shape, dtype))

    def zeros(self, shape: Any, dtype: Any) -> Any:
        return self._counted(super().zeros(shape, dtype))

    def asarray(self, host: Any, dtype: Any = None) -> Any:
        return self._counted(super().asarray(host, dtype))

    def memory_info(self) -> tuple[int, int]:
        return self.total - self.used, self.total

    def _counted(self, array: np.ndarray) -> np.ndarray:
        self.used += array.nbytes
        assert self.used <= self.total, "the GPU's memory is full"
        weakref.finalize(array, self._free, array.nbytes)
        return array

    def _free(self, count: int) -> None:
        self.used -= count


def make(gpu: SmallGPU, **args: Any) -> LLMEngine:
    config = dataclasses.replace(ModelConfig.from_folder(FOLDER), max_position_embeddings=10**9)
    weights, ops = load_weights(FOLDER, config, gpu, np.float32), make_ops("tuned", gpu, config, np.float32)
    settings = EngineArgs(enforce_eager=True, **args)
    return settings.make_engine(gpu, config, weights, ops, Tokenizer.from_folder(FOLDER))


@pytest.mark.parametrize("megabytes", [20, 90])
@pytest.mark.parametrize("args", [{"max_num_seqs": 1}, {"max_num_seqs": 30, "max_num_batched_tokens": 100}], ids=str)
def test_a_length_that_is_named_fits(args, megabytes):
    """Hazard: the number that one refusal names is refused the next time."""
    gpu = SmallGPU(megabytes * 10**6)
    with pytest.raises(UserError, match=r"the tables for such lengths alone take .*; (\d+) fits$") as caught:
        make(gpu, max_model_len=10**6, **args)
    length = int(str(caught.value).split()[-2])
    engine = make(gpu, max_model_len=length, **args)
    assert engine.maker.max_model_len == length and gpu.used > gpu.total / 2
