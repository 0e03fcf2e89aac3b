"""What no engine can beat: a row's FLOPs and bytes, and the time they take at the machine's own ceilings.

A decode step of up to BYTES_ALONE rows: the bytes of weights and KV at the bandwidth of a copy. Above: cuBLAS's own
products at the step's rows, and the KV bytes. Prompts: cuBLAS's products, and attention's FLOPs at the rate of a large
one. A whole workload: its prompts, then as many steps as the longest answer has, of weights and KV alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiny_vllm.bench.table.ceilings import Ceilings
from tiny_vllm.bench.table.rows import TableRow
from tiny_vllm.models.config import ModelConfig

BYTES_ALONE = 8  # rows: below about so many cuBLAS itself is far from the bandwidth
CHUNK = 8192  # tokens of a prefill step, above which a product's rate grows no more


@dataclass(frozen=True)
class Work:
    """Of what a row's figure is for: one decode step, all its prompts, or a whole workload."""

    flops: float
    num_bytes: float


@dataclass(frozen=True)
class Model:
    """A model's counts. element: bytes of a number."""

    config: ModelConfig
    element: int

    @property
    def layer_weights(self) -> int:
        """Numbers in the matrices of all layers."""
        c = self.config
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        one = (2 * q + 2 * kv) * c.hidden_size + 3 * c.intermediate_size * c.hidden_size
        return c.num_hidden_layers * one

    @property
    def head_weights(self) -> int:
        return self.config.vocab_size * self.config.hidden_size

    @property
    def weight_bytes(self) -> int:
        """What a step reads at least: every matrix once; norms and rows of the embedding are too few to count."""
        return (self.layer_weights + self.head_weights) * self.element

    @property
    def kv_bytes(self) -> int:
        """Of one token."""
        c = self.config
        return 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * self.element

    def attention_flops(self, pairs: float) -> float:
        """Two products of head_dim for each layer, query head, and pair of a token and a key that it sees."""
        c = self.config
        return 4.0 * c.num_hidden_layers * c.num_attention_heads * c.head_dim * pairs


def layer_rows(row: TableRow) -> set[int]:
    """Rows of the layers' products that the floor of a row is made of."""
    if row.kind == "start":
        return set()
    if row.kind == "decode":
        return {row.requests}
    return {_chunk(row)}


def head_rows(row: TableRow) -> set[int]:
    """Rows of the vocabulary product, likewise."""
    return set() if row.kind in ("start", "nano-vllm") else {row.requests}


def floor(row: TableRow, model: Model, ceilings: Ceilings) -> float | None:
    """In the row's unit; None for a process's start, whose floor nobody measured."""
    if row.kind == "start":
        return None
    if row.kind == "decode":
        return 1e3 * _decode_seconds(row, model, ceilings)
    seconds = _prompt_seconds(row, model, ceilings)
    if row.kind == "first-token":
        return 1e3 * seconds
    if row.kind == "prefill":
        return row.requests * row.input_len / seconds
    answers = sum(answer for _, answer in row.lengths)
    return answers / (seconds + _answer_seconds(row, model, ceilings))


def work(row: TableRow, model: Model) -> Work | None:
    """What the roofline plot places a row by."""
    if row.kind == "start":
        return None
    matrices, tokens = model.layer_weights + model.head_weights, sum(prompt for prompt, _ in row.lengths)
    if row.kind == "decode":
        keys = row.requests * _mean_context(row)
        flops = 2 * matrices * row.requests + model.attention_flops(keys)
        return Work(flops, model.weight_bytes + keys * model.kv_bytes)
    flops = 2 * model.layer_weights * tokens + 2 * model.head_weights * row.requests
    flops += model.attention_flops(_prompt_pairs(row))
    steps, keys, answers = 1, tokens, 0
    if row.kind == "nano-vllm":
        steps, keys = max(answer for _, answer in row.lengths), tokens + _answer_keys(row)
        answers = sum(answer - 1 for _, answer in row.lengths)
    flops += 2 * matrices * answers + model.attention_flops(keys - tokens)
    return Work(flops, steps * model.weight_bytes + keys * model.kv_bytes)


def _mean_context(row: TableRow) -> float:
    """Keys that a step of a request sees, over the steps between its first token and its last."""
    return row.input_len + row.output_len / 2


def _prompt_pairs(row: TableRow) -> int:
    return sum(prompt * (prompt + 1) // 2 for prompt, _ in row.lengths)


def _answer_keys(row: TableRow) -> int:
    """Keys that all steps after the first token see, over all requests."""
    return sum((answer - 1) * prompt + answer * (answer - 1) // 2 for prompt, answer in row.lengths)


def _chunk(row: TableRow) -> int:
    return min(CHUNK, sum(prompt for prompt, _ in row.lengths))


def _decode_seconds(row: TableRow, model: Model, ceilings: Ceilings) -> float:
    kv = row.requests * _mean_context(row) * model.kv_bytes / ceilings.copy
    if row.requests <= BYTES_ALONE:
        return model.weight_bytes / ceilings.copy + kv
    return ceilings.layers[row.requests] + ceilings.head[row.requests] + kv


def _prompt_seconds(row: TableRow, model: Model, ceilings: Ceilings) -> float:
    """Every prompt's tokens through the layers once; the head only for the last token of each."""
    tokens, chunk = sum(prompt for prompt, _ in row.lengths), _chunk(row)
    attention = model.attention_flops(_prompt_pairs(row)) / ceilings.flops
    last = 0.0 if row.kind == "nano-vllm" else ceilings.head[row.requests]
    return ceilings.layers[chunk] * tokens / chunk + attention + tokens * model.kv_bytes / ceilings.copy + last


def _answer_seconds(row: TableRow, model: Model, ceilings: Ceilings) -> float:
    """A step for every token of the longest answer but the first."""
    steps = max(answer for _, answer in row.lengths) - 1
    return (steps * model.weight_bytes + _answer_keys(row) * model.kv_bytes) / ceilings.copy
