"""Runs of a student's code in a process of its own, which may crash, hang or lie without harm to this one."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tiny_vllm.device.emulator.process import Worker
from tiny_vllm.sandbox.limits import Limits
from tiny_vllm.sandbox.message import pack, unpack

__all__ = ["Child", "Found", "Limits", "RunResult"]

_PRINTED_LIMIT = 64 << 10
_WORDS_LIMIT = 4 << 20  # bytes of an answer beside its arrays
_NO_ANSWER = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError, SyntaxError)


@dataclass(frozen=True)
class Found:
    """A finding of check mode; text: the whole line, with file, line and kind."""

    kind: str
    text: str
    file: str
    line: int


@dataclass(frozen=True)
class RunResult:
    """outputs: as the run left them; empty where the process died. never_written: elements, by output.

    error: what ended the run, "" if nothing did; kind: the exception's name, "crash" or "timeout".
    """

    outputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    findings: tuple[Found, ...] = ()
    never_written: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    kind: str = ""
    printed: str = ""


class Child(AbstractContextManager["Child"]):
    """One process for one implementation; a context manager. It is started at once and, after a crash, again.

    tree: a checkout, whose chapters, kernels and tiny_vllm run. work: the folder whose chapter files stand in for
    theirs. check: every launch on the emulator in check mode. order: of a block's threads, "forward" or "reverse".
    """

    def __init__(
        self,
        tree: Path,
        work: Path,
        device: str = "emulator",
        check: bool = True,
        order: str = "forward",
        limits: Limits | None = None,
    ) -> None:
        self._limits, tree = limits or Limits(), tree.resolve()
        variables = {
            "TINY_VLLM_WORK": str(work.resolve()),
            "TINY_VLLM_DEVICE": device,
            "TINY_VLLM_THREAD_ORDER": order,
            "TINY_VLLM_CHECK": "1" if check and device == "emulator" else "0",
            "TINY_VLLM_TIMEOUT": str(self._limits.launch_seconds),
            "PYTHONPATH": os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        command = [sys.executable, "-m", "tiny_vllm.sandbox.child", json.dumps(asdict(self._limits))]
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes it
        self._worker = Worker(command, variables, cwd=tree, stderr=self._printed)
        self._worker.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._worker.end()
        self._printed.close()

    def run(
        self, chapter: str, exercise: str, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray]
    ) -> RunResult:
        """Let the exercise's task run on these inputs and outputs (chapters/_cases.py). chapter: "ch03_rms_norm"."""
        arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
        scalars = {name: np.asarray(value).item() for name, value in inputs.items() if name not in arrays}
        request = {"chapter": chapter, "exercise": exercise, "inputs": [*arrays], "scalars": scalars}
        request["outputs"] = [*outputs]
        message = pack(request, arrays | {f"out {name}": array for name, array in outputs.items()})
        begin = self._printed.seek(0, os.SEEK_END)
        try:
            limit = _WORDS_LIMIT + sum(array.nbytes for array in outputs.values())
            answer = self._worker.ask(message, self._limits.seconds, limit)
            return _result(answer, outputs, self._said(begin))
        except TimeoutError:
            text = f"no answer after {self._limits.seconds:g} s; is there an endless loop?"
            return RunResult(error=text, kind="timeout", printed=self._said(begin))
        except EOFError as death:
            return RunResult(error=str(death), kind="crash", printed=self._said(begin))
        except _NO_ANSWER as error:
            self._worker.end()
            return RunResult(error=f"the process answered in another form ({error})", kind="crash")

    def _said(self, begin: int) -> str:
        self._printed.seek(begin)
        return self._printed.read(_PRINTED_LIMIT).decode(errors="replace")


def _result(answer: bytes, outputs: Mapping[str, np.ndarray], printed: str) -> RunResult:
    """The answer, if it has the form that was asked for; what is in it is the child's word."""
    words, arrays = unpack(answer)
    for name, array in outputs.items():
        if arrays[name].dtype != array.dtype or arrays[name].shape != array.shape:
            raise ValueError(f"{name} came back as another array")
    found = tuple(Found(str(f["kind"]), str(f["text"]), str(f["file"]), int(f["line"])) for f in words["findings"])
    unwritten = {name: int(words["never_written"][name]) for name in outputs}
    kept = {name: arrays[name] for name in outputs}
    return RunResult(kept, found, unwritten, str(words["error"]), str(words["kind"]), printed)
