"""What `python -m chapters.chNN_name PROMPT` shares: options, the model, the answer as it comes, and its speed."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiny_vllm.device import get_device
from tiny_vllm.device.base import Device
from tiny_vllm.errors import KernelError, UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.dtype import resolve_dtype
from tiny_vllm.models.hub import BUILT_IN, resolve_model
from tiny_vllm.models.llama import Llama
from tiny_vllm.models.tokenizer import Tokenizer
from tiny_vllm.models.weights import LlamaWeights, load_weights
from tiny_vllm.ops.base import Ops

Generate = Callable[[Llama, list[int], int], Iterator[int]]


@dataclass(frozen=True)
class Session:
    """A loaded model and a prompt (token ids), for as many sets of ops as a chapter compares."""

    device: Device
    config: ModelConfig
    weights: LlamaWeights
    dtype: np.dtype
    tokenizer: Tokenizer
    ids: list[int]
    max_tokens: int

    @classmethod
    def load(cls, arguments: argparse.Namespace) -> Session:
        device, folder = get_device(arguments.device), resolve_model(arguments.model)
        config, tokenizer = ModelConfig.from_folder(folder), Tokenizer.from_folder(folder)
        ids = tokenizer.encode(arguments.prompt)
        _check_lengths(len(ids), arguments.max_tokens, config.max_position_embeddings)
        dtype = resolve_dtype(arguments.dtype, config, device)
        weights = load_weights(Path(folder), config, device, dtype)
        return cls(device, config, weights, dtype, tokenizer, ids, arguments.max_tokens)

    def tokens(self, ops: type[Ops], generate: Generate, max_tokens: int | None = None) -> Iterator[int]:
        """The answer's tokens as this set of ops computes them, up to an end-of-sequence token, which is left out."""
        model = Llama(self.config, self.weights, ops(self.device, self.config, self.dtype))
        stream = generate(model, self.ids, self.max_tokens if max_tokens is None else max_tokens)
        return itertools.takewhile(lambda token: token not in self.config.eos_token_ids, stream)


def main(run: Callable[[Session], None], chapter: str) -> int:
    """Parse the command line, load the model, run; a user's mistake is one sentence and exit code 2."""
    try:
        run(Session.load(_parser(chapter).parse_args()))
        return 0
    except UserError as error:
        return _say(error, 2)
    except KernelError as error:
        return _say(error, 1)


def speak(session: Session, tokens: Iterable[int]) -> str:
    """Write prompt and answer to stdout as it comes; returns how fast it came."""
    text = session.tokenizer.decode_stream()
    _write(session.tokenizer.decode(session.ids))
    speed = measure(tokens, lambda token: _write(text.step(token)))
    _write("\n")
    return speed


def measure(tokens: Iterable[int], each: Callable[[int], Any] = lambda token: None) -> str:
    """Draw all tokens; "5 tokens, 12.3 tokens/s". The first one is not timed: it waits for the compiler."""
    count, start = 0, 0.0
    for token in tokens:
        each(token)
        count += 1
        start = start or time.perf_counter()
    seconds = time.perf_counter() - start
    rate = f", {(count - 1) / seconds:.1f} tokens/s after the first" if count > 1 else ""
    return f"{count} token{'s' if count != 1 else ''}{rate}"


def _parser(chapter: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m chapters.{chapter}",
        description="Run the model as far as this chapter builds it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue")
    parser.add_argument("--model", default=BUILT_IN, help="a folder, a Hugging Face hub id, or smollm2-135m")
    parser.add_argument("--max-tokens", type=int, default=8, metavar="N", help="at most this many new tokens")
    parser.add_argument("--device", choices=("auto", "cuda", "emulator"), default="auto", help="where kernels run")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto")
    return parser


def _check_lengths(prompt: int, max_tokens: int, limit: int) -> None:
    if prompt == 0:
        raise UserError("the prompt has no tokens; give a text")
    if max_tokens < 1:
        raise UserError(f"--max-tokens is {max_tokens}; give at least 1")
    if prompt + max_tokens > limit:
        raise UserError(f"{prompt} prompt tokens and --max-tokens {max_tokens} exceed the model's {limit}; give fewer")


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def _say(error: Exception, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code
