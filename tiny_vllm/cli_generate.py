"""`tiny-vllm generate`: one prompt, its answer streamed as it comes, and how fast it came."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from tiny_vllm.types import RequestOutput, SamplingParams

if TYPE_CHECKING:
    from tiny_vllm.engine.figures import Figures
    from tiny_vllm.llm import LLM

DEFAULT_MODEL = "smollm2-135m"


def add_parser(commands: Any) -> None:
    """The options of `generate`."""
    parser = commands.add_parser(
        "generate", help="answer one prompt", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue; - reads it from standard input")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a folder, a Hugging Face hub id, or smollm2-135m")
    parser.add_argument("--chat", action="store_true", help="ask as a chat message, by the model's chat template")
    parser.add_argument("--device", choices=("auto", "cuda", "emulator"), default="auto", help="where kernels run")
    parser.add_argument(
        "--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto", help="of weights and cache"
    )
    parser.add_argument("--ops", choices=("tuned", "course", "reference"), default="tuned", help="whose kernels run")
    parser.add_argument(
        "--max-model-len", type=int, metavar="N", help="limit of prompt and answer together (default: the checkpoint's)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="at most this many new tokens")
    parser.add_argument(
        "--seed", type=int, metavar="S", help="the same seed draws the same answer (default: a new one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Answer the prompt; the text goes to stdout, the figures to stderr."""
    params = SamplingParams(arguments.temperature, arguments.max_tokens, seed=arguments.seed)
    text = sys.stdin.read().removesuffix("\n") if arguments.prompt == "-" else arguments.prompt
    with _load(arguments) as llm:
        prompt = llm.chat_prompt([{"role": "user", "content": text}]) if arguments.chat else text
        output, figures = _answer(llm, prompt, params, shown=not arguments.json)
        if arguments.json:
            print(json.dumps(_as_dict(llm, output, figures), ensure_ascii=False))
        else:
            print(figures, file=sys.stderr)
    return 0


def _load(arguments: argparse.Namespace) -> LLM:
    from tiny_vllm.llm import LLM  # late: `--help` and a wrong option need no engine

    return LLM(
        arguments.model,
        dtype=arguments.dtype,
        device=arguments.device,
        max_model_len=arguments.max_model_len,
        ops=_ops(arguments.ops),
    )


def _ops(name: str) -> Any:
    """What LLM takes as ops; only the command line knows the course's set, which needs the checkout."""
    if name != "course":
        return name
    from tiny_vllm.course import load_course_ops

    return load_course_ops


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


def _write(text: str) -> None:
    """To stdout at once; a character that the terminal's encoding lacks becomes a question mark."""
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
