"""What a contender is to the table: something that answers prompts of token ids, and says what it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Setup:
    """What every contender is started with.

    model: a folder. max_model_len: tokens of the longest request. memory_share: of the GPU's memory, for this
    contender alone. device, dtype: as LLM takes them; a peer chooses its own device.
    """

    model: str
    max_model_len: int
    memory_share: float
    device: str = "auto"
    dtype: str = "auto"


class Contender:
    """Loaded when it is made. A subclass says what it needs, and what it leaves out of the table and why."""

    needs: ClassVar[tuple[str, ...]] = ()  # modules
    install: ClassVar[str] = ""  # how to get them
    kinds: ClassVar[tuple[str, ...]] = ("decode", "first-token", "prefill", "nano-vllm", "start")
    note: ClassVar[str] = ""
    is_slow: ClassVar[bool] = False  # so that a whole workload is done once, and warmed up by a short one
    shortened: ClassVar[dict[str, int]] = {}  # kind: tokens of an answer, where the row's own take minutes

    def __init__(self, setup: Setup) -> None:
        raise NotImplementedError(f"{type(self).__name__} loads nothing")

    def generate(self, prompts: Sequence[Sequence[int]], output_lens: Sequence[int], temperature: float) -> int:
        """Answer all prompts together, each with exactly its number of tokens; returns how many came out in all."""
        raise NotImplementedError

    def get_ready(self) -> None:
        """What an engine may do after its first token, and before it is measured."""

    def versions(self) -> dict[str, str]:
        """{package: version}."""
        return {}

    @classmethod
    def longest_answer(cls, kind: str) -> int | None:
        return cls.shortened.get(kind)


def module_versions(*modules: Any) -> dict[str, str]:
    """{name: __version__}."""
    return {module.__name__: str(getattr(module, "__version__", "?")) for module in modules}
