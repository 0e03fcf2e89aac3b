"""The options that every command with an engine has, under vLLM's names."""

from __future__ import annotations

import argparse
from typing import Any

DEFAULT_MODEL = "smollm2-135m"
SETTINGS = (
    "dtype",
    "device",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "gpu_memory_utilization",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "enforce_eager",
    "async_scheduling",
    "batch_invariant",
)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add what engine_settings reads."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--model", default=DEFAULT_MODEL, help="a folder, a Hugging Face hub id, or %(default)s (the default)"
    )
    group.add_argument(
        "--device", choices=("auto", "cuda", "emulator"), default="auto", help="where kernels run; auto: a GPU if found"
    )
    group.add_argument(
        "--dtype",
        choices=("auto", "bfloat16", "float16", "float32"),
        default="auto",
        help="of weights and cache; auto: float32 on the emulator, on a GPU the checkpoint's, or float16",
    )
    group.add_argument(
        "--ops",
        choices=("tuned", "course", "reference"),
        default="tuned",
        help="whose kernels run: those of kernels/ (the default), the chapters', or none, NumPy on the emulator",
    )
    group.add_argument(
        "--max-model-len", type=int, metavar="N", help="limit of prompt and answer together (default: the checkpoint's)"
    )
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="requests at once (default: 256, emulator: 16)")
    group.add_argument(
        "--max-num-batched-tokens", type=int, metavar="N", help="tokens a step (default: 8192, emulator: 2048)"
    )
    group.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens a block of the KV cache (16)")
    group.add_argument(
        "--gpu-memory-utilization", type=float, default=0.9, metavar="X", help="part of the GPU's memory to fill (0.9)"
    )
    group.add_argument("--num-gpu-blocks-override", type=int, metavar="N", help="so many blocks of the cache instead")
    flag = argparse.BooleanOptionalAction
    group.add_argument("--enable-prefix-caching", action=flag, default=True, help="share blocks of a common beginning")
    group.add_argument("--enforce-eager", action=flag, help="no CUDA graphs (default on the emulator)")
    group.add_argument("--async-scheduling", action=flag, help="plan a step while one runs (default on a GPU)")
    group.add_argument(
        "--batch-invariant", action="store_true", help="the same bits for a request in any batch; slower"
    )


def engine_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of LLM that the options give."""
    return {name: getattr(arguments, name) for name in SETTINGS} | {"ops": _ops(arguments.ops)}


def _ops(name: str) -> Any:
    """What LLM takes as ops; only the command line knows the course's set, which needs the checkout."""
    if name != "course":
        return name
    from tiny_vllm.course import load_course_ops

    return load_course_ops
