"""The runner: lays the plan of a step into fixed device buffers, runs the forward, and hands out the logits.

Everything that a step touches is allocated here, once, and never moves: a step owns no memory of its own, which is
also what a CUDA graph asks for.
"""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from functools import lru_cache

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.engine.decode_graphs import DecodeGraphs, DecodeStep, bucket_sizes
from tiny_vllm.engine.kv_cache import CacheSize, allocate_cache, bytes_per_token
from tiny_vllm.engine.step_inputs import KEPT_VIEWS, StepInputs
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.llama import Llama
from tiny_vllm.models.rope import rope_table
from tiny_vllm.models.weights import LlamaWeights
from tiny_vllm.ops.base import Ops
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.types import Array, StepMeta, StepPlan

ACTIVATIONS = ("hidden", "normed", "qkv", "attended", "gate_up", "activated", "last", "last_normed", "logits")
ALL_BITS = 0xFF  # in every byte: NaN in every type


class Runner:
    """Runs steps of many requests over one paged cache.

    A step has at most max_num_batched_tokens tokens of at most size.max_num_seqs requests. enforce_eager: capture no
    decode step into a graph.
    """

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        weights: LlamaWeights,
        ops: Ops,
        size: CacheSize,
        max_num_batched_tokens: int,
        enforce_eager: bool = False,
    ) -> None:
        self.device, self.max_model_len, self.max_num_tokens = device, size.max_model_len, max_num_batched_tokens
        self.model = Llama(config, weights, ops)
        num_rows = min(size.max_num_seqs, max_num_batched_tokens)  # of logits: one a request, and each has a token
        table = device.asarray(rope_table(config.rope, config.head_dim, size.max_model_len))
        self.buffers = Buffers.allocate(device, config, ops.dtype, max_num_batched_tokens, num_rows, table)
        self._take = lru_cache(KEPT_VIEWS)(self.buffers.take)
        self.inputs = StepInputs(device, max_num_batched_tokens, size.max_num_seqs, size.max_model_len, size.block_size)
        self._wanted = device.zeros((num_rows,), np.int32)
        self.graphs = DecodeGraphs(device, bucket_sizes(num_rows) if ops.graph_safe and not enforce_eager else [])
        ops.reserve(max_num_batched_tokens, size.max_num_seqs, size.max_model_len)
        blocks = size.count(device, size.block_size * bytes_per_token(config, ops.dtype))  # last: of what is left
        self.cache = allocate_cache(device, config, ops.dtype, blocks, size.block_size)

    @property
    def num_rows(self) -> int:
        """The most rows of logits that a step gives."""
        return len(self.buffers.logits)

    @property
    def last_ids(self) -> Array:
        """(max_num_seqs,) int32: the ids that the last step drew, in the order of its sampled requests.

        Whoever draws writes them here before the next step, which may hold them as IN_FLIGHT.
        """
        return self.inputs.last_ids

    def forward(self, plan: StepPlan, last_only: bool = False) -> Array:
        """Compute a step and write its keys and values.

        Logits (L,V) float32, until the next step: the last token's of each request that is_sampled, in plan order.
        last_only: logits_of will not be asked for; the last layer then computes what these need, and no more.
        UserError for a block that the cache does not have, which a student's block pool may have handed out.
        """
        _check_blocks(plan, self.cache.num_blocks)
        with self.device.no_allocation():
            if all(len(part.token_ids) == 1 and part.is_sampled for part in plan.requests):
                size = self.graphs.size_for(len(plan.requests))
                if size is not None:
                    return self._decode(plan, size)[: len(plan.requests)]
            self._last_step = self.inputs.lay_out(plan, last_only=last_only)
            return self._run(*self._last_step)

    def warm_up(self) -> None:
        """Capture the decode steps of every size now, the largest first, instead of when each comes.

        And before, run a step of the most tokens there may be: CUDA loads a product's code when it first runs, and the
        products of such steps, which come one after the other while prompts are read, are tuned.
        """
        if self.graphs.sizes:
            with self.device.no_allocation(), getattr(self.device, "tuning", nullcontext)():
                self._run(*self.inputs.lay_out(StepPlan({}), 1, self.max_num_tokens, last_only=True))
        for size in self.graphs.sizes[::-1]:
            for _ in range(2):  # the first compiles, the second captures
                with self.device.no_allocation():
                    self._decode(StepPlan({}), size)

    def logits_of(self, rows: list[int]) -> Array:
        """Logits (len(rows),V) of any tokens of the last step, num_rows of them at most, in place of the step's own."""
        tokens, meta = self._last_step
        assert meta.last is None, "logits_of after a step with last_only"
        with self.device.no_allocation():
            wanted = self._wanted[: len(rows)]
            self.device.copy_in(wanted, np.array(rows, np.int32))
            meta, buffers = dataclasses.replace(meta, logits_indices=wanted), self.buffers.take(len(tokens), len(rows))
            return self.model.ops.head(buffers.hidden, self.model.weights, meta, buffers)

    def forget(self, request_id: str) -> None:
        """A request has ended; its id may come again."""
        self.inputs.tables.forget(request_id)

    def _decode(self, plan: StepPlan, size: int) -> Array:
        """A step of one token a request, padded to `size` requests."""
        tokens, meta = self._last_step = self.inputs.lay_out(plan, size, place=False)
        # A launcher that sizes its grid by the lengths must size it for those of every later replay
        any_lengths = dataclasses.replace(meta, seq_lens_host=[self.max_model_len] * size)
        step = DecodeStep(
            lambda: self._place_and_run(tokens, meta),
            lambda: self._place_and_run(tokens, any_lengths),
            lambda: self._spoil(meta),
        )
        return self.graphs.run(size, step)

    def _place_and_run(self, tokens: Array, meta: StepMeta) -> Array:
        self.inputs.place()
        return self._run(tokens, meta)

    def _spoil(self, meta: StepMeta) -> None:
        """NaN in every activation, and in the cache where the step has written; no places for its tokens."""
        for name in ACTIVATIONS:
            getattr(self.buffers, name).view(np.uint8).fill(ALL_BITS)
        few = self.buffers.take(len(meta.positions), 0)
        for kv in self.cache.layers:
            self.model.ops.write_kv(few.k, few.v, kv, meta.slot_mapping)
        for places in (meta.positions, meta.slot_mapping, meta.block_table):
            places.fill(0)

    def _run(self, tokens: Array, meta: StepMeta) -> Array:
        buffers = self._take(len(tokens), len(meta.logits_indices))
        return self.model.forward(tokens, self.cache, meta, buffers)


def _check_blocks(plan: StepPlan, num_blocks: int) -> None:
    for part in plan.requests:
        blocks = part.new_block_ids
        if not blocks or (set(map(type, blocks)) == {int} and min(blocks) >= 0 and max(blocks) < num_blocks):
            continue
        for block in blocks:
            if not isinstance(block, (int, np.integer)) or not 0 <= block < num_blocks:
                raise UserError(
                    f"request {part.request_id!r} was given block {block!r:.40}, and the cache has blocks 0 to "
                    f"{num_blocks - 1}; allocate() of a block pool hands out these"
                )
