"""The command line: `tiny-vllm COMMAND`. A mistake answers with one sentence and an exit code, never with a traceback.

Exit codes: 0; 1 a kernel or the system failed; 2 a mistake that the user can mend; 130 Ctrl-C; 141 nobody reads our
output any more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from tiny_vllm import __version__, cli_bench, cli_check, cli_course, cli_doctor, cli_fetch, cli_generate
from tiny_vllm.errors import KernelError, UserError

FAILED, MISTAKE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141


class Parser(argparse.ArgumentParser):
    """Argument errors go the way of all user errors: one line, no usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    try:
        arguments = build_parser().parse_args(argv)
        return int(arguments.run(arguments))
    except UserError as error:
        return _say(error, MISTAKE)
    except BrokenPipeError:
        # What is left in the buffer would raise once more when Python flushes it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except MemoryError as error:
        return _say(
            f"not enough memory ({error}); use a smaller model, a 16-bit --dtype or a smaller --max-model-len", FAILED
        )
    except (KernelError, OSError) as error:
        return _say(error, FAILED)


def build_parser() -> Parser:
    """All commands, each from its own module."""
    parser = Parser(
        prog="tiny-vllm", description="A small LLM inference engine of raw CUDA C kernels, with or without a GPU."
    )
    parser.add_argument("--version", action="version", version=f"tiny-vllm {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    cli_generate.add_parser(commands)
    cli_bench.add_parser(commands)
    cli_fetch.add_parser(commands)
    cli_doctor.add_parser(commands)
    cli_check.add_parser(commands)
    cli_course.add_parser(commands)
    return parser


def _say(error: object, code: int) -> int:
    print(f"tiny-vllm: error: {error}", file=sys.stderr)
    return code
