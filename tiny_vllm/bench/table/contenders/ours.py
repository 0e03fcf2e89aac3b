"""Our engine, through LLM."""

from __future__ import annotations

from collections.abc import Sequence

from tiny_vllm.bench.table.contenders.base import Contender, Setup
from tiny_vllm.types import SamplingParams


class Ours(Contender):
    """Defaults, but for the prefix cache: no engine here may remember a prompt."""

    def __init__(self, setup: Setup) -> None:
        from tiny_vllm.device import get_device
        from tiny_vllm.llm import LLM

        # LLM counts what other processes hold, and this share is for ours alone
        free, total = get_device(setup.device).memory_info()
        self._llm = LLM(
            setup.model,
            device=setup.device,
            dtype=setup.dtype,
            max_model_len=setup.max_model_len,
            gpu_memory_utilization=min(setup.memory_share + (total - free) / total, 0.95),
            enable_prefix_caching=False,
        )

    def get_ready(self) -> None:
        self._llm.warm_up()

    def generate(self, prompts: Sequence[Sequence[int]], output_lens: Sequence[int], temperature: float) -> int:
        params = [
            SamplingParams(temperature, length, ignore_eos=True, detokenize=False, seed=index)
            for index, length in enumerate(output_lens)
        ]
        outputs = self._llm.generate([{"prompt_token_ids": list(ids)} for ids in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def versions(self) -> dict[str, str]:
        from tiny_vllm import __version__

        return {"tiny-vllm": __version__}
