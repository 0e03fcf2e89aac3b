"""torch.compile: the model of transformers, a static cache, and a decode step captured as one CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tiny_vllm.bench.table.contenders.base import Setup
from tiny_vllm.bench.table.contenders.transformers_generate import TransformersGenerate
from tiny_vllm.errors import UserError

WARM_UPS = 3  # steps before the capture: what the compiler still does must not be captured
GRAIN = 128  # the cache is longer than the request by up to so many tokens


@dataclass
class Captured:
    """One batch and cache length: its tensors, which the graph reads and writes, and the graph of a step."""

    cache: Any
    token: Any
    position: Any
    graph: Any = None


class TorchCompile(TransformersGenerate):
    """Decode alone: prompts come in eagerly, and are no part of its figure."""

    kinds = ("decode",)
    note = "torch.compile has decode rows only: its prompts run eagerly"
    is_slow = False
    shortened: ClassVar[dict[str, int]] = {}

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if self.device != "cuda":
            raise UserError("a CUDA graph needs a GPU, and torch finds none")
        self._key: tuple[int, int] | None = None
        self._state: Captured | None = None

    def generate(self, prompts: Sequence[Sequence[int]], output_lens: Sequence[int], temperature: float) -> int:
        steps, torch = max(output_lens) - 1, self._torch
        ids = torch.tensor([list(prompt) for prompt in prompts], device=self.device)
        with torch.inference_mode():
            if not steps and not self._holds(ids, steps):  # the first token of all: there is no step to compile for
                self.model(ids, logits_to_keep=1)
                torch.cuda.synchronize()
                return len(prompts)
            state = self._captured(ids, steps)
            self._prefill(state, ids)
            for _ in range(steps):
                state.graph.replay()
            torch.cuda.synchronize()
        return len(prompts) * (steps + 1)

    def _holds(self, ids: Any, steps: int) -> bool:
        """Whether what was captured last serves this batch and length."""
        return self._key is not None and self._key[0] == ids.shape[0] and self._key[1] >= _room(ids, steps)

    def _captured(self, ids: Any, steps: int) -> Captured:
        """A step's graph for this batch; the last one is kept, and serves shorter answers too."""
        if self._state is None or not self._holds(ids, steps):
            self._key = self._state = None
            self._torch.cuda.empty_cache()
            self._state = self._capture(ids, _room(ids, steps))
            self._key = ids.shape[0], _room(ids, steps)
        return self._state

    def _capture(self, ids: Any, room: int) -> Captured:
        torch, batch = self._torch, ids.shape[0]
        cache = self._transformers.StaticCache(config=self.model.config, max_cache_len=room)
        token = torch.zeros((batch, 1), dtype=ids.dtype, device=self.device)
        state = Captured(cache, token, torch.zeros(1, dtype=torch.long, device=self.device))
        self._prefill(state, ids)
        torch._dynamo.reset()
        step = torch.compile(self._step, dynamic=False)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                step(state.token, state.position, cache)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            state.token.copy_(step(state.token, state.position, cache))
            state.position.add_(1)
        state.graph = graph
        return state

    def _step(self, token: Any, position: Any, cache: Any) -> Any:
        """The likeliest next token (B,1) of each request."""
        rows = position[None].expand(len(token), 1)
        out = self.model(
            token, past_key_values=cache, cache_position=position, position_ids=rows, use_cache=True, logits_to_keep=1
        )
        return out.logits[:, -1:].argmax(-1)

    def _prefill(self, state: Captured, ids: Any) -> None:
        state.cache.reset()
        positions = self._torch.arange(ids.shape[1], device=self.device)
        out = self.model(ids, past_key_values=state.cache, cache_position=positions, use_cache=True, logits_to_keep=1)
        state.token.copy_(out.logits[:, -1:].argmax(-1))
        state.position.fill_(ids.shape[1])


def _room(ids: Any, steps: int) -> int:
    """Tokens of the cache."""
    return -(-(ids.shape[1] + max(steps, WARM_UPS) + 2) // GRAIN) * GRAIN
