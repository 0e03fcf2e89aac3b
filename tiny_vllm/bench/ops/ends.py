"""The operations before the first layer and after the last one, but for its norm and product."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiny_vllm.bench.ops.inputs import Inputs
from tiny_vllm.bench.ops.operation import FLOAT, INT, Operation, Sizes
from tiny_vllm.ops.argmax import Argmax
from tiny_vllm.ops.sampling import ROW


def embed(sizes: Sizes, rows: int) -> Operation:
    hidden, vocabulary = sizes.config.hidden_size, sizes.config.vocab_size
    return Operation(
        "embed",
        rows,
        f"({vocabulary},{hidden})",
        rows * INT + 2 * rows * hidden * sizes.element,
        0,
        lambda inputs: (inputs.ids(rows, vocabulary), inputs.new(vocabulary, hidden), inputs.out(rows, hidden)),
        lambda ops, tokens, table, out: ops.embed(tokens, table, out=out),
    )


def take_rows(sizes: Sizes, rows: int) -> Operation:
    hidden = sizes.config.hidden_size
    return Operation(
        "take_rows",
        rows,
        f"({rows},{hidden})",
        rows * INT + 2 * rows * hidden * sizes.element,
        0,
        lambda inputs: (inputs.new(rows, hidden), inputs.ids(rows, rows), inputs.out(rows, hidden)),
        lambda ops, x, wanted, out: ops.take_rows(x, wanted, out=out),
    )


def argmax(sizes: Sizes, rows: int) -> Operation:
    """The course has its own; every other set runs with the engine's."""
    vocabulary = sizes.config.vocab_size

    def launch(ops: Any, logits: Any, out: Any, engines: Argmax) -> None:
        getattr(ops, "argmax", engines)(logits, out=out)

    return Operation(
        "argmax",
        rows,
        f"({rows},{vocabulary})",
        rows * (vocabulary * FLOAT + INT),
        rows * vocabulary,
        lambda inputs: (*_logits(inputs, rows, vocabulary), inputs.argmax),
        launch,
    )


def sampling(sizes: Sizes, rows: int, is_filtered: bool = False) -> Operation:
    """A draw at a temperature, or from the top-k and top-p; a logit is divided and gets its noise."""
    vocabulary = sizes.config.vocab_size
    return Operation(
        "sampling top-k top-p" if is_filtered else "sampling",
        rows,
        f"({rows},{vocabulary})",
        rows * (vocabulary * FLOAT + ROW.itemsize + INT),
        2 * rows * vocabulary,
        lambda inputs: (*_logits(inputs, rows, vocabulary), inputs.sampler(rows, vocabulary, is_filtered)),
        lambda ops, logits, out, kernels: kernels.draw(logits, is_filtered, out),
        engine_only=True,
    )


def top_sampling(sizes: Sizes, rows: int) -> Operation:
    return sampling(sizes, rows, is_filtered=True)


def _logits(inputs: Inputs, rows: int, vocabulary: int) -> tuple[Any, Any]:
    return inputs.new(rows, vocabulary, dtype=np.float32), inputs.out(rows, dtype=np.int32)
