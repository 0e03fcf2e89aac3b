"""`tiny-vllm generate`: one prompt, its answer streamed as it comes, and how fast it came."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from tiny_vllm.cli_engine import DEFAULT_MODEL, add_engine_options, engine_settings
from tiny_vllm.errors import UserError
from tiny_vllm.types import RequestOutput, SamplingParams

if TYPE_CHECKING:
    from tiny_vllm.engine.figures import Figures
    from tiny_vllm.llm import LLM

__all__ = ["DEFAULT_MODEL", "add_parser", "run"]


def add_parser(commands: Any) -> None:
    """The options of `generate`."""
    parser = commands.add_parser("generate", help="answer one prompt")
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue; - reads it from standard input")
    parser.add_argument("--chat", action="store_true", help="ask as a chat message, by the model's chat template")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token, and is the default"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=128, metavar="N", help="at most this many new tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="the same seed draws the same answer (default: a new one)"
    )
    _add_sampling(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the text")
    parser.add_argument(
        "--mine", metavar="FOLDER", help="run the course's set on your own files, work/ for example, in a child process"
    )
    add_engine_options(parser)
    parser.set_defaults(run=run)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    """What SamplingParams takes besides, under its names."""
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest tokens only")
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest tokens that have the share P"
    )
    parser.add_argument(
        "--min-p", type=float, default=0.0, metavar="P", help="draw from tokens at least P times as likely as the best"
    )
    parser.add_argument(
        "--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: less of what was there before"
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given several times"
    )


def _sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    return SamplingParams(
        arguments.temperature,
        arguments.max_tokens,
        seed=arguments.seed,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        stop=arguments.stop,
    )


def run(arguments: argparse.Namespace) -> int:
    """Answer the prompt; the text goes to stdout, the figures to stderr."""
    if arguments.mine is None:
        return _run(arguments)
    if arguments.ops == "reference":
        raise UserError("--mine runs the course's kernels and yours, --ops reference runs none; leave one of them out")
    from tiny_vllm.course.mine import run_mine

    arguments.ops = "course"
    return run_mine(arguments.mine, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    params = _sampling_params(arguments)
    text = _read_stdin() if arguments.prompt == "-" else arguments.prompt
    with _load(arguments) as llm:
        prompt = llm.chat_prompt([{"role": "user", "content": text}]) if arguments.chat else text
        output, figures = _answer(llm, prompt, params, shown=not arguments.json)
        if arguments.json:
            print(json.dumps(_as_dict(llm, output, figures)))  # in ASCII, which every encoding holds
        else:
            print(figures, file=sys.stderr)
    return 0


def _load(arguments: argparse.Namespace) -> LLM:
    from tiny_vllm.llm import LLM  # late: `--help` and a wrong option need no engine

    return LLM(arguments.model, **engine_settings(arguments))


def _answer(llm: LLM, prompt: Any, params: SamplingParams, shown: bool) -> tuple[RequestOutput, Figures]:
    from tiny_vllm.engine.figures import Stopwatch

    stopwatch = Stopwatch()
    text = ""
    for output in llm.stream(prompt, params):
        stopwatch.tick()
        if shown:
            _write(output.outputs[0].text[len(text) :])
        text = output.outputs[0].text
    if shown:
        _write("\n")
    return output, stopwatch.figures(llm.weight_bytes, llm.device.bandwidth())


def _read_stdin() -> str:
    try:
        return sys.stdin.read().removesuffix("\n")
    except (AttributeError, UnicodeDecodeError) as error:  # Python has no stdin where it was closed
        raise UserError(f"no prompt can be read from standard input ({error}); give UTF-8 text there") from None


def _write(text: str) -> None:
    """To stdout at once; a character that the terminal's encoding lacks becomes a question mark."""
    if sys.stdout is None:  # closed by whoever started us: the answer is not wanted
        return
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def _as_dict(llm: LLM, output: RequestOutput, figures: Figures) -> dict[str, Any]:
    answer = output.outputs[0]
    return {
        "model": llm.model,
        "device": llm.device.description,
        "dtype": llm.dtype.name,
        "prompt_token_ids": output.prompt_token_ids,
        "token_ids": answer.token_ids,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "figures": figures.as_dict(),
    }
