"""`tiny-vllm check SCRIPT.py`: run a script with every kernel under check, and say what is wrong with them.

On the emulator in this process (device/emulator/check); on a GPU under compute-sanitizer, one run for each tool.
"""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiny_vllm.errors import KernelCheckError, UserError

CLEAN, FOUND = 0, 1


def add_parser(commands: Any) -> None:
    """The options of `check`."""
    parser = commands.add_parser("check", help="run a Python script and name the faults of its kernels")
    parser.add_argument(
        "--device", choices=("auto", "cuda", "emulator"), default="auto", help="where kernels run (default: auto)"
    )
    parser.add_argument(
        "--order", choices=("forward", "reverse"), default="forward", help="of a block's threads, on the emulator"
    )
    parser.add_argument("script", metavar="SCRIPT.py", help="what to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 1 when there are findings, else the script's own."""
    script = Path(arguments.script)
    if not script.is_file():
        raise UserError(f"there is no script {arguments.script}; give the path of a Python file")
    if _device(arguments.device) == "cuda":
        return _run_on_gpu(script, arguments.args)
    return _run_on_emulator(script, arguments.args, arguments.order)


def _device(name: str) -> str:
    from tiny_vllm.device import get_device

    return get_device(name).name


# ---- the emulator


def _run_on_emulator(script: Path, args: Sequence[str], order: str) -> int:
    settings = {"TINY_VLLM_DEVICE": "emulator", "TINY_VLLM_CHECK": "1", "TINY_VLLM_THREAD_ORDER": order}
    with _as_the_script(script, args, settings):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except KernelCheckError as error:
            print(error)
            return FOUND
        except SystemExit as end:
            return _exit_code(end)
        except UserError:
            raise
        except Exception:
            traceback.print_exc()
            return FOUND
    print("tiny-vllm check: no findings", file=sys.stderr)
    return CLEAN


@contextmanager
def _as_the_script(script: Path, args: Sequence[str], settings: dict[str, str]) -> Iterator[None]:
    """What Python gives a script that it starts: its arguments, its folder on the path; and our settings."""
    argv, path, environment = sys.argv, list(sys.path), dict(os.environ)
    sys.argv = [str(script), *args]
    sys.path.insert(0, str(script.resolve().parent))
    os.environ.update(settings)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        os.environ.clear()
        os.environ.update(environment)


def _exit_code(end: SystemExit) -> int:
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
        return FOUND
    return end.code or CLEAN


# ---- a GPU


def _run_on_gpu(script: Path, args: Sequence[str]) -> int:
    from tiny_vllm.device.compute_sanitizer import TOOLS, command, find_sanitizer, parse

    sanitizer, program = find_sanitizer(), [sys.executable, str(script), *args]
    environment = {**os.environ, "TINY_VLLM_DEVICE": "cuda", "TINY_VLLM_CHECK": "1"}
    findings, code = [], CLEAN
    with tempfile.TemporaryDirectory() as folder:
        for number, tool in enumerate(TOOLS):
            log = Path(folder) / f"{tool}.txt"
            # The script speaks once: the later runs say the same.
            output = None if number == 0 else subprocess.DEVNULL
            done = subprocess.run(command(sanitizer, tool, log, program), env=environment, stdout=output, stderr=output)
            text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            findings += parse(text)
            code = code or done.returncode
    for finding in findings:
        print(finding)
    if findings:
        return FOUND
    if code == CLEAN:
        print("tiny-vllm check: no findings", file=sys.stderr)
    return code
