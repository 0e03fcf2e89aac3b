"""What bounds a request and a step: lengths, numbers of requests, blocks of the cache."""

from __future__ import annotations

from dataclasses import dataclass

from tiny_vllm.errors import UserError
from tiny_vllm.types import Request


@dataclass(frozen=True)
class Limits:
    """Limits under vLLM's names, and the cache's size; UserError for what is no whole number or too small.

    max_num_seqs: requests that run at once. max_num_batched_tokens: tokens a step computes, over all requests.
    max_model_len: prompt and answer together.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int
    block_size: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            low = 2 if name == "max_model_len" else 1
            if type(value) is not int or value < low:
                raise UserError(f"{name} is {value!r}; give a whole number of at least {low}")

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold num_tokens; the last one may be partly empty."""
        return -(-num_tokens // self.block_size)

    def max_num_tokens(self, request: Request) -> int:
        """Tokens, prompt and answer together, at which a request ends. The last of them is never computed."""
        return min(len(request.prompt_token_ids) + request.params.max_tokens, self.max_model_len)

    def check(self, request: Request) -> None:
        """UserError for a request that could never be finished."""
        name, length = f"request {request.request_id!r}", len(request.prompt_token_ids)
        if not 1 <= length < self.max_model_len:
            raise UserError(
                f"{name} has {length} prompt tokens and max_model_len is {self.max_model_len}; give 1 to "
                f"{self.max_model_len - 1}, which leaves room for one new token, or raise max_model_len"
            )
        needed = self.blocks_for(self.max_num_tokens(request) - 1)
        if needed > self.num_blocks:
            room = self.num_blocks * self.block_size + 1 - length
            way_out = f"lower max_tokens to {room}" if room > 0 else f"shorten the prompt by {1 - room} tokens or more"
            raise UserError(
                f"{name} needs {needed} blocks of {self.block_size} tokens for {length} prompt tokens and max_tokens "
                f"{request.params.max_tokens}, and the cache has {self.num_blocks}; {way_out}, or give the cache more "
                "blocks by num_gpu_blocks_override or gpu_memory_utilization"
            )
