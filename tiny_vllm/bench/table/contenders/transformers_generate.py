"""transformers: `generate` for prompts of one length, `generate_batch` (its continuous batching) for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar

from tiny_vllm.bench.table.contenders.base import Contender, Setup, module_versions

PAGED, USUAL = ("paged|sdpa", "sdpa_paged"), "sdpa"  # names of attention: the first two by version


class TransformersGenerate(Contender):
    """Eager PyTorch. A step takes some 50 ms, so its answers are short."""

    needs = ("torch", "transformers")
    install = "pip install torch transformers"
    note = "transformers answers with fewer tokens: 32 in decode rows, 64 each in nano-vllm's workload, greedily"
    is_slow = True
    shortened: ClassVar[dict[str, int]] = {"decode": 32, "nano-vllm": 64}

    def __init__(self, setup: Setup) -> None:
        self._torch, self._transformers = import_module("torch"), import_module("transformers")
        self.device = "cuda" if self._torch.cuda.is_available() else "cpu"
        model = self._transformers.AutoModelForCausalLM.from_pretrained(
            setup.model, dtype=setup.dtype, attn_implementation=USUAL
        )
        self.model = model.to(self.device).eval()
        self.model.generation_config.eos_token_id, self.model.generation_config.pad_token_id = None, 0

    def generate(self, prompts: Sequence[Sequence[int]], output_lens: Sequence[int], temperature: float) -> int:
        is_even = len({len(prompt) for prompt in prompts}) == len(set(output_lens)) == 1
        count = self._even(prompts, output_lens[0]) if is_even else self._batch(prompts, output_lens)
        if self.device == "cuda":
            self._torch.cuda.synchronize()
        return count

    def _even(self, prompts: Sequence[Sequence[int]], length: int) -> int:
        ids = self._torch.tensor([list(prompt) for prompt in prompts], device=self.device)
        mask = self._torch.ones_like(ids)
        limits = {"max_new_tokens": length, "min_new_tokens": length}
        with self._torch.inference_mode():
            out = self.model.generate(ids, attention_mask=mask, do_sample=False, **limits)
        return int(out.shape[0] * (out.shape[1] - ids.shape[1]))

    def _batch(self, prompts: Sequence[Sequence[int]], output_lens: Sequence[int]) -> int:
        """Answers of one length: it has one limit for all. It works in a thread, which no mode of this one reaches."""
        config = self._transformers.GenerationConfig(
            max_new_tokens=max(output_lens), do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        outputs: Any = self._with_paged_attention(
            lambda: self.model.generate_batch(inputs=[list(prompt) for prompt in prompts], generation_config=config)
        )
        return sum(len(output.generated_tokens) for output in outputs.values())

    def _with_paged_attention(self, run: Any) -> Any:
        for name in PAGED:
            try:
                self.model.set_attn_implementation(name)
                break
            except (ValueError, KeyError):
                continue
        try:
            return run()
        finally:
            self.model.set_attn_implementation(USUAL)

    def versions(self) -> dict[str, str]:
        return module_versions(self._torch, self._transformers)
