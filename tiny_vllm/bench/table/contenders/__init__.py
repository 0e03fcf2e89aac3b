"""Who the table measures: our engine and its peers, each imported in a process of its own, where it is installed."""

from __future__ import annotations

from importlib.util import find_spec

from tiny_vllm.bench.table.contenders.base import Contender
from tiny_vllm.bench.table.contenders.ours import Ours
from tiny_vllm.bench.table.contenders.torch_compile import TorchCompile
from tiny_vllm.bench.table.contenders.transformers_generate import TransformersGenerate
from tiny_vllm.bench.table.contenders.vllm_llm import VLLM

OURS = "ours"
PEERS: dict[str, type[Contender]] = {"transformers": TransformersGenerate, "compile": TorchCompile, "vllm": VLLM}
CONTENDERS: dict[str, type[Contender]] = {OURS: Ours, **PEERS}


def missing(name: str) -> str | None:
    """Why a contender cannot take part, with the way out; None where all that it needs is installed."""
    absent = [module for module in CONTENDERS[name].needs if find_spec(module) is None]
    return f"not installed: {', '.join(absent)} ({CONTENDERS[name].install})" if absent else None
