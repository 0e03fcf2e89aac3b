"""The runner: lays the plan of a step into fixed device buffers, runs the forward, and hands out the logits.

Everything that a step touches is allocated here, once, and never moves: a step owns no memory of its own, which is
also what a CUDA graph will ask for.
"""

from __future__ import annotations

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.engine.kv_cache import allocate_cache, num_blocks
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.llama import Llama
from tiny_vllm.models.rope import rope_table
from tiny_vllm.models.weights import LlamaWeights
from tiny_vllm.ops.base import Ops
from tiny_vllm.ops.buffers import Buffers
from tiny_vllm.types import Array, Request, StepMeta, StepPlan

HEADER = 4  # query_start_loc (2), seq_lens (1) and logits_indices (1) come before the rows of the tokens
ROW_INPUTS = 3  # a token id, its position and its slot


class Runner:
    """Runs steps of one request, of at most max_num_batched_tokens tokens, over a cache of max_model_len tokens.

    The request owns every block of the cache, in order; block tables of several requests come with the scheduler.
    """

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        weights: LlamaWeights,
        ops: Ops,
        max_model_len: int,
        max_num_batched_tokens: int = 2048,
    ) -> None:
        self.device = device
        self.max_num_batched_tokens = budget = min(max_num_batched_tokens, max_model_len)
        self.model = Llama(config, weights, ops)
        table = device.asarray(rope_table(config, max_model_len))
        self.buffers = Buffers.allocate(device, config, ops.dtype, budget, num_rows=1, rope_table=table)
        self.inputs = StepInputs(device, budget, num_blocks(max_model_len))
        ops.reserve(num_tokens=budget, num_requests=1, max_seq_len=max_model_len)
        self.cache = allocate_cache(device, config, ops.dtype, max_model_len)  # last: it is measured by what is left

    def step(self, request: Request, plan: StepPlan) -> Array:
        """Compute the request's next tokens and write their keys and values; logits (1,V) float32 of the last of them.

        Only the step that reaches the request's last known token says what comes next; those before it fill the cache.
        """
        start, count = request.num_computed_tokens, plan.num_scheduled_tokens[request.request_id]
        with self.device.no_allocation():
            tokens, meta = self.inputs.lay_out(request.token_ids[start : start + count], start)
            return self.model.forward(tokens, self.cache, meta, self.buffers.take(count, 1))


class StepInputs:
    """Token ids and StepMeta of a step in one int32 array, so that one copy brings them to the device."""

    def __init__(self, device: Device, num_tokens: int, num_table_blocks: int) -> None:
        self.device = device
        self.host = np.zeros(HEADER + ROW_INPUTS * num_tokens, np.int32)
        self.array = device.zeros(self.host.shape, np.int32)
        self.block_table = device.asarray(np.arange(num_table_blocks, dtype=np.int32)[None])

    def lay_out(self, token_ids: list[int], start: int) -> tuple[Array, StepMeta]:
        """Copy a step of token_ids at positions start, start + 1, ... to the device: (tokens (T,), meta), views."""
        count = len(token_ids)
        end = HEADER + ROW_INPUTS * count
        self.host[:HEADER] = 0, count, start + count, count - 1
        rows = self.host[HEADER:end].reshape(ROW_INPUTS, count)
        rows[0] = token_ids
        rows[1:] = np.arange(start, start + count)  # the blocks stand in order, so a token's slot is its position
        self.device.copy_in(self.array[:end], self.host[:end])
        return self._views(count, start)

    def _views(self, count: int, start: int) -> tuple[Array, StepMeta]:
        tokens, positions, slots = (self.array[HEADER + i * count :][:count] for i in range(ROW_INPUTS))
        meta = StepMeta(
            positions=positions,
            slot_mapping=slots,
            query_start_loc=self.array[:2],
            seq_lens=self.array[2:3],
            block_table=self.block_table,
            logits_indices=self.array[3:4],
            query_lens_host=[count],
            seq_lens_host=[start + count],
        )
        return tokens, meta
