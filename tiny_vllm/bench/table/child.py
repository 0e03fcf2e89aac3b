"""A contender in a process of its own: `python -m tiny_vllm.bench.table.child NAME SETUP`, one JSON line a message.

It says {"ready": ...} after its first token, then answers each line of its standard input: {"warm_up": row} and
{"sample": row, "seed": n}. Whatever the contender prints goes to standard error. NAME "ceilings" measures the machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tiny_vllm.bench.table.contenders.base import Contender, Setup
from tiny_vllm.bench.table.rows import TableRow
from tiny_vllm.bench.workload import TOP_ID, uniform

CEILINGS = "ceilings"
FIRST_PROMPT = 16  # tokens
Reply = Callable[[dict[str, Any]], None]


def main(arguments: list[str]) -> int:
    """Serve until standard input ends, or nobody reads the replies any more."""
    with suppress(BrokenPipeError):
        return _serve(arguments, _take_stdout())
    return 1


def _serve(arguments: list[str], reply: Reply) -> int:
    name, settings = arguments[0], json.loads(arguments[1])
    try:
        if name == CEILINGS:
            reply({"ready": True, "ceilings": _ceilings(settings)})
            return 0
        contender, ready = _start(name, Setup(**settings))
        reply(ready)
    except BrokenPipeError:
        raise
    except Exception as error:
        reply({"error": describe(error)})
        return 1
    top_id = _top_id(settings["model"])
    for line in sys.stdin:
        try:
            answer = _answer(contender, json.loads(line), top_id)
        except Exception as error:
            answer = {"error": describe(error)}
        reply(answer)
    return 0


def describe(error: BaseException) -> str:
    """One line: the kind of error, and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


def _take_stdout() -> Reply:
    """Replies alone go to the pipe; what anything else prints, libraries in C included, goes to standard error."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=pipe, flush=True)

    return reply


def _start(name: str, setup: Setup) -> tuple[Contender, dict[str, Any]]:
    """The contender after its first token, and the seconds that its parts took since this process's first line."""
    from tiny_vllm.bench.table.contenders import CONTENDERS

    begin = time.perf_counter()
    contender = CONTENDERS[name](setup)
    loaded = time.perf_counter()
    [prompt] = uniform(1, FIRST_PROMPT, 1, _top_id(setup.model)).prompts
    contender.generate([prompt], [1], 0.0)
    phases = {"load": loaded - begin, "first token": time.perf_counter() - loaded}
    return contender, {"ready": True, "phases": phases, "versions": contender.versions()}


def _answer(contender: Contender, message: dict[str, Any], top_id: int) -> dict[str, Any]:
    from tiny_vllm.bench.table import measure

    if "warm_up" in message:
        measure.warm_up(contender, TableRow(**message["warm_up"]), top_id)
        return {"warm": True}
    if "get_ready" in message:
        contender.get_ready()
        return {"ready": True}
    return {"sample": asdict(measure.sample(contender, TableRow(**message["sample"]), top_id, message["seed"]))}


def _top_id(folder: str) -> int:
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return min(TOP_ID, int(config["vocab_size"]) - 1)


def _ceilings(settings: dict[str, Any]) -> dict[str, Any]:
    from tiny_vllm.bench.table.ceilings import measure_ceilings
    from tiny_vllm.device import get_device
    from tiny_vllm.models.config import ModelConfig
    from tiny_vllm.models.dtype import resolve_dtype

    config, device = ModelConfig.from_folder(settings["model"]), get_device(settings["device"])
    dtype = resolve_dtype(settings["dtype"], config, device)
    found = measure_ceilings(device, config, dtype, settings["layer_rows"], settings["head_rows"])
    about = {
        "card": device.description,
        "dtype": dtype.name,
        "element": dtype.itemsize,
        "is_gpu": device.name == "cuda",
    }
    return found.as_dict() | about


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
