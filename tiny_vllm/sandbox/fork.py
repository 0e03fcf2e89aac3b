"""A function in a process of its own that keeps this one's terminal: it prints as it goes and may read."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tiny_vllm.device.emulator.process import cause_of_death
from tiny_vllm.errors import KernelError, UserError
from tiny_vllm.sandbox.child import describe

FAILED, MISTAKE, INTERRUPTED = 1, 2, 130  # exit codes, as tiny_vllm/cli.py has them


def run_apart(function: Callable[[], int], work: Path) -> int:
    """The function's result. What it raises is told on stderr in one sentence, by which a line of work/ is quoted.

    KernelError for a process that dies.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os._exit(_told(function, work))
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    if code < 0:
        raise KernelError(cause_of_death(code))
    return code


def _told(function: Callable[[], int], work: Path) -> int:
    try:
        return function()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:
        print(f"tiny-vllm: error: {describe(error, work)}", file=sys.stderr)
        return MISTAKE if isinstance(error, UserError) else FAILED
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
