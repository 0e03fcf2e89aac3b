"""vLLM, through its LLM class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

from tiny_vllm.bench.table.contenders.base import Contender, Setup, module_versions

# Nothing is fetched or reported; the sampler of FlashInfer compiles for minutes where it is not built in.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}


class VLLM(Contender):
    """Its own defaults: CUDA graphs, torch.compile, asynchronous scheduling, FlashAttention; no prefix cache."""

    needs = ("vllm",)
    install = "pip install vllm"

    def __init__(self, setup: Setup) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._vllm = import_module("vllm")
        self._llm = self._vllm.LLM(
            model=setup.model,
            skip_tokenizer_init=True,
            dtype=setup.dtype,
            max_model_len=setup.max_model_len,
            gpu_memory_utilization=setup.memory_share,
            enable_prefix_caching=False,
            attention_backend="FLASH_ATTN",
            seed=0,
        )

    def generate(self, prompts: Sequence[Sequence[int]], output_lens: Sequence[int], temperature: float) -> int:
        make = self._vllm.SamplingParams
        params = [
            make(temperature=temperature, max_tokens=length, ignore_eos=True, detokenize=False)
            for length in output_lens
        ]
        outputs = self._llm.generate([{"prompt_token_ids": list(ids)} for ids in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def versions(self) -> dict[str, str]:
        return module_versions(self._vllm, import_module("torch"))
