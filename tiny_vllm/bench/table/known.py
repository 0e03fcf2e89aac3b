"""What the table is held against: targets of ours, and vLLM's best figures on any machine (docs/performance.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.shapes import SHAPES

MODEL, CARD = "llama-3.2-1b", "H200"


@dataclass(frozen=True)
class Known:
    """In the row's unit. None: nobody said."""

    target: float | None = None
    vllm_best: float | None = None


# docs/performance.md, "Ours beside its peers", names the machines, versions and date of these.
KNOWN = {
    "decode-1": Known(0.69, 1.38),
    "decode-8": Known(0.83, 1.63),
    "decode-64": Known(1.5, 2.41),
    "decode-256": Known(2.9, 5.65),
    "first-token": Known(15, 17.7),
    "prefill": Known(290_000, 265_000),
    "nano-vllm": Known(45_000, 34_000),
    "start": Known(6, 25.8),
}


def known(row: str, config: ModelConfig, card: str) -> Known:
    """Of a standard row; nothing for another model's shape or another card, where these figures say nothing."""
    is_shape = _shape(config) == _shape(SHAPES[MODEL])
    return KNOWN.get(row, Known()) if is_shape and CARD in card else Known()


def _shape(config: ModelConfig) -> ModelConfig:
    """Without what no time depends on."""
    return replace(config, dtype="bfloat16", bos_token_id=None, eos_token_ids=())
