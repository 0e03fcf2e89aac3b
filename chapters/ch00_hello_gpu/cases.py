"""What the exercises of chapter 00 are checked with: grids that fit, grids with threads to spare, one element."""

from __future__ import annotations

from typing import Any

import numpy as np

from chapters._cases import Arrays, Case, Task, Values, poisoned
from chapters.ch00_hello_gpu.stage import compile_kernel, num_blocks
from tiny_vllm.device.base import Device

GRANITE, GEHRING = 0.22, 0.5**0.5  # how some models scale a residual branch, or the sum


def _case(group: str, n: int, threads: int, blocks: int = 0, scale: float = 1.0) -> Case:
    sizes = {"n": n, "threads": threads} | ({"blocks": blocks} if blocks else {})
    return Case(group, sizes, scale=scale)


GRIDS = (
    _case("basic", 256, 64),
    _case("basic", 128, 128),
    _case("tails", 1000, 128),
    _case("tails", 129, 128),
    _case("tails", 1, 1024),
    _case("limits", 5000, 1024),
)


def secret(rng: np.random.Generator, group: str) -> Case:
    """A grid that nobody has seen: whole blocks, or blocks with threads to spare."""
    threads, blocks = int(rng.choice([32, 96, 128, 256])), int(rng.integers(2, 12))
    spare = 0 if group == "basic" else int(rng.integers(1, threads))
    return _case(group, threads * blocks - spare, threads, scale=float(10 ** rng.uniform(-3, 3)))


def secret_grid(rng: np.random.Generator, group: str) -> Case:
    case = secret(rng, group)
    few = int(rng.integers(1, 4)) if group != "basic" else case.sizes["n"] // case.sizes["threads"]
    return _case(group, case.sizes["n"], case.sizes["threads"], few, case.scale)


# ---- what goes in, and what must come out


def draw_sizes(rng: np.random.Generator, case: Case) -> dict[str, Any]:
    return dict(case.sizes)


def draw_vectors(rng: np.random.Generator, case: Case) -> dict[str, Any]:
    a, b = (rng.normal(size=case.sizes["n"]) * case.scale for _ in range(2))
    return {"a": a.astype(np.float32), "b": b.astype(np.float32), **case.sizes}


def blocks_needed(n: int, threads: int) -> int:
    whole, rest = divmod(n, threads)
    return whole + (rest > 0)


def expected_blocks(inputs: Values) -> Arrays:
    return {"blocks": np.array([blocks_needed(inputs["n"], inputs["threads"])], np.int32)}


def _signed(block: np.ndarray, thread: np.ndarray, n: int) -> Arrays:
    return {"block": block[:n].astype(np.int32), "thread": thread[:n].astype(np.int32)}


def _grid(inputs: Values) -> tuple[np.ndarray, int, int]:
    blocks, threads = blocks_needed(inputs["n"], inputs["threads"]), inputs["threads"]
    return np.arange(blocks * threads), blocks, threads


def owners(inputs: Values) -> Arrays:
    element, _, threads = _grid(inputs)
    return _signed(element // threads, element % threads, inputs["n"])


def owners_from_the_last(inputs: Values) -> Arrays:
    element, blocks, threads = _grid(inputs)
    return _signed(blocks - 1 - element // threads, element % threads, inputs["n"])


def owners_dealt(inputs: Values) -> Arrays:
    element, blocks, _ = _grid(inputs)
    return _signed(element % blocks, element // blocks, inputs["n"])


def total(inputs: Values) -> Arrays:
    return {"sum": np.add(inputs["a"], inputs["b"])}


def total_of_granite(inputs: Values) -> Arrays:
    return {"sum": (inputs["a"] + np.float64(GRANITE) * inputs["b"]).astype(np.float32)}


def total_of_gehring(inputs: Values) -> Arrays:
    return {"sum": ((inputs["a"].astype(np.float64) + inputs["b"]) * GEHRING).astype(np.float32)}


# ---- how it runs


def run_num_blocks(device: Device, inputs: Values, outputs: Values) -> None:
    n, threads = inputs["n"], inputs["threads"]
    blocks = num_blocks(n, threads)
    if not isinstance(blocks, (int, np.integer)):
        raise TypeError(f"num_blocks({n}, {threads}) returned {blocks!r}; a grid needs a whole number, an int")
    device.copy_in(outputs["blocks"], np.array([blocks], np.int32))


def run_which_thread(device: Device, inputs: Values, outputs: Values) -> None:
    _launch(device, "which_thread", inputs, outputs["block"], outputs["thread"])


def run_vector_add(device: Device, inputs: Values, outputs: Values) -> None:
    _launch(device, "vector_add", inputs, inputs["a"], inputs["b"], outputs["sum"])


def run_any_grid(device: Device, inputs: Values, outputs: Values) -> None:
    _launch(device, "vector_add_any_grid", inputs, inputs["a"], inputs["b"], outputs["sum"])


def _launch(device: Device, kernel: str, inputs: Values, *arrays: Any) -> None:
    n, threads = inputs["n"], inputs["threads"]
    grid = inputs.get("blocks", blocks_needed(n, threads))
    compile_kernel(device, kernel)((grid,), (threads,), (*arrays, n))


def one_sum(inputs: Values) -> Arrays:
    return {"sum": poisoned(inputs["n"])}


def as_inputs(a: Any, b: Any, threads: int = 128) -> dict[str, Any]:
    return {"a": a, "b": b, "n": a.size, "threads": threads}


OPS = {"0.3": ("vector_add", as_inputs)}

TASKS: tuple[Task, ...] = (
    Task(
        exercise="0.1",
        name="num_blocks",
        cases=GRIDS,
        draw=draw_sizes,
        outputs=lambda inputs: {"blocks": poisoned(1, dtype=np.int32)},
        run=run_num_blocks,
        expected=expected_blocks,
        secret=secret,
    ),
    Task(
        exercise="0.2",
        name="which_thread",
        cases=GRIDS,
        draw=draw_sizes,
        outputs=lambda inputs: {name: poisoned(inputs["n"], dtype=np.int32) for name in ("block", "thread")},
        run=run_which_thread,
        expected=owners,
        secret=secret,
        twists={1: owners_from_the_last, 2: owners_dealt},
    ),
    Task(
        exercise="0.3",
        name="vector_add",
        cases=(*GRIDS, _case("numbers", 300, 128, scale=1e3), _case("numbers", 300, 128, scale=1e-3)),
        draw=draw_vectors,
        outputs=one_sum,
        run=run_vector_add,
        expected=total,
        secret=secret,
        rtol=1e-6,
        atol=1e-12,
        twists={1: total_of_granite, 2: total_of_gehring},
    ),
    Task(
        exercise="0.4",
        name="vector_add_any_grid",
        cases=(_case("basic", 256, 64, 4), _case("tails", 1000, 64, 3), _case("tails", 1, 32, 2)),
        draw=draw_vectors,
        outputs=one_sum,
        run=run_any_grid,
        expected=total,
        secret=secret_grid,
        rtol=1e-6,
        atol=1e-12,
    ),
)
