"""tiny-vllm: a small LLM inference engine of raw CUDA C kernels, built stage by stage by its course."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiny_vllm.llm import LLM
    from tiny_vllm.types import CompletionOutput, RequestOutput, SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "__version__"]

# Imported when first asked for: `tiny-vllm --help` and a lesson on one kernel need no engine.
_HOMES = {
    "LLM": "tiny_vllm.llm",
    "CompletionOutput": "tiny_vllm.types",
    "RequestOutput": "tiny_vllm.types",
    "SamplingParams": "tiny_vllm.types",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
