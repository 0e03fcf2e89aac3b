"""What the exercises of chapter 03 are checked with. Each case finds a mistake that no case before it finds."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from chapters._cases import Arrays, Case, Task, Values, poisoned
from chapters.ch03_rms_norm import formula
from chapters.ch03_rms_norm.stage import SOURCE, RMSNormOps
from tiny_vllm.device.base import Device
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.device.source import load_source, scalar_options
from tiny_vllm.errors import KernelError

EPS = 1e-5  # SmolLM2's
GROUP = 64  # columns of a head, for the twist of norms by head
FEW_LANES = 8  # of a warp's 32: fewer than that a store is no work of each thread
ACTIVATIONS = Path(__file__).resolve().parents[2] / "tests" / "data" / "smollm2_activations.npz"


def _case(group: str, rows: int, hidden: int, threads: int = 0, kind: str = "normal", scale: float = 1.0) -> Case:
    sizes = {"rows": rows, "hidden": hidden} | ({"threads": threads} if threads else {})
    return Case(group, sizes, kind, scale)


# ---- what goes in


@cache
def embedding() -> np.ndarray:
    """The embeddings of "The capital of France is" (5,576): rms 0.08 to 0.13, where eps can be seen."""
    with np.load(ACTIVATIONS) as arrays:
        return np.asarray(arrays["embedding"])


def rows(rng: np.random.Generator, case: Case) -> np.ndarray:
    """x (rows, hidden), float32 but for the kind "half"."""
    shape = case.sizes["rows"], case.sizes["hidden"]
    if case.kind == "embedding":
        return embedding()
    if case.kind == "one large":  # 4,096 squared is 2^24, where float32 counts in steps of 2
        ones = rng.choice(np.array([-1, 1], np.float32), shape)
        ones[:, 0] = 4096
        return ones
    dtype = np.float16 if case.kind == "half" else np.float32
    x = (rng.normal(size=shape) * case.scale).astype(dtype)
    if case.kind == "with a zero row":
        x[1 % len(x)] = 0
    return x


def draw(rng: np.random.Generator, case: Case) -> dict[str, Any]:
    x = rows(rng, case)
    weight = rng.uniform(-2, 2, size=x.shape[1:]).astype(np.float32)
    counted = {"counted": 1} if case.kind == "counted" else {}
    return {"x": x, "weight": weight, "eps": EPS, **_threads(case), **counted}


def draw_rows(rng: np.random.Generator, case: Case) -> dict[str, Any]:
    return {"x": rows(rng, case), **_threads(case)}


def draw_column(rng: np.random.Generator, case: Case) -> dict[str, Any]:
    return {"a": (rng.normal(size=case.sizes["threads"]) * case.scale).astype(np.float32)}


def _threads(case: Case) -> dict[str, int]:
    return {"threads": case.sizes["threads"]} if "threads" in case.sizes else {}


def secret(rng: np.random.Generator, group: str) -> Case:
    """A case of the group that nobody has seen: whole rows of threads, ragged rows, small numbers, many columns."""
    threads = int(rng.choice([32, 64, 128, 256]))
    count, whole = int(rng.integers(1, 10)), threads * int(rng.integers(2, 9))
    scale = float(10 ** rng.uniform(-3, 3))
    if group == "basic":
        return _case(group, count, whole, threads)
    if group == "tails":
        return _case(group, count, int(rng.integers(1, threads)) + int(rng.choice([0, whole])), threads)
    if group == "numbers":
        return _case(group, max(2, count), whole, threads, "with a zero row", min(scale, 1e-2))
    return _case(group, count, 1024, 1024, "one large")


def secret_rows(rng: np.random.Generator, group: str) -> Case:
    """As secret, for the sums of the threads alone."""
    case = secret(rng, group)
    if group == "numbers":
        return _case(group, case.sizes["rows"], case.sizes["hidden"], case.sizes["threads"], "half", 200.0)
    return case if group != "limits" else _case(group, 2, int(rng.integers(4097, 9000)), 128)


def secret_column(rng: np.random.Generator, group: str) -> Case:
    return Case(group, {"threads": int(rng.choice([64, 128, 256]))}, scale=float(10 ** rng.uniform(-3, 3)))


# ---- what must come out, from the formula


def _norm(x: np.ndarray, eps: float) -> np.ndarray:
    """One vector in float64 over its root mean square."""
    return x / (np.dot(x, x) / x.size + eps) ** 0.5


def _each_row(inputs: Values, function: Any, gain: float = 0.0) -> Arrays:
    normed = [function(row.astype(np.float64)) for row in inputs["x"]]
    return {"y": (np.array(normed) * (gain + inputs["weight"])).astype(np.float32)}


def normed(inputs: Values) -> Arrays:
    return _each_row(inputs, lambda row: _norm(row, inputs["eps"]))


def normed_gain_plus_one(inputs: Values) -> Arrays:
    return _each_row(inputs, lambda row: _norm(row, inputs["eps"]), gain=1.0)


def normed_by_head(inputs: Values) -> Arrays:
    heads = np.arange(GROUP, inputs["x"].shape[1], GROUP)
    return _each_row(inputs, lambda row: np.concatenate([_norm(head, inputs["eps"]) for head in np.split(row, heads)]))


def normed_around_mean(inputs: Values) -> Arrays:
    return _each_row(inputs, lambda row: _norm(row - row.mean(), inputs["eps"]))


def _sums(inputs: Values, owner: np.ndarray) -> Arrays:
    """owner (hidden,): the thread that each column belongs to."""
    squares = inputs["x"].astype(np.float64) ** 2
    sums = np.zeros((len(squares), inputs["threads"]))
    np.add.at(sums.T, owner, squares.T)
    return {"sums": sums.astype(np.float32)}


def _columns(inputs: Values) -> tuple[np.ndarray, int]:
    return np.arange(inputs["x"].shape[1]), inputs["threads"]


def squares(inputs: Values) -> Arrays:
    column, threads = _columns(inputs)
    return _sums(inputs, column % threads)


def squares_of_pairs(inputs: Values) -> Arrays:
    column, threads = _columns(inputs)
    return _sums(inputs, column // 2 % threads)


def squares_of_runs(inputs: Values) -> Arrays:
    column, threads = _columns(inputs)
    return _sums(inputs, column // -(-len(column) // threads))


def squares_from_the_last(inputs: Values) -> Arrays:
    column, threads = _columns(inputs)
    return _sums(inputs, threads - 1 - column % threads)


def smoothed(inputs: Values) -> Arrays:
    b = inputs["a"].astype(np.float64)
    for _ in range(3):
        b = (b + np.roll(b, -1)) / 2
    return {"b": b.astype(np.float32)}


# ---- how it runs


def run_formula(device: Device, inputs: Values, outputs: Values) -> None:
    x, weight = (device.to_host(inputs[name]) for name in ("x", "weight"))
    device.copy_in(outputs["y"], formula.rms_norm(x, weight, inputs["eps"]))


def run_tree(device: Device, inputs: Values, outputs: Values) -> None:
    _run_rung(device, inputs, outputs, "tree")
    if "counted" in inputs and device.name == "emulator":
        _refuse_one_writer(device, inputs, outputs)


def _refuse_one_writer(device: Any, inputs: Values, outputs: Values) -> None:
    """KernelError where one thread fills y for all: its values are right, and the counters tell."""
    x, weight, threads = inputs["x"], inputs["weight"], inputs["threads"]
    kernel = device.RawKernel(load_source(SOURCE), "rms_norm_tree", scalar_options(x.dtype), check=True, count=True)
    kernel((len(x),), (threads,), (x, weight, outputs["y"], x.shape[1], inputs["eps"]))
    stores = kernel.report().of("global store")
    lanes, requests = sum(each.lanes for each in stores), sum(each.requests for each in stores)
    if lanes < FEW_LANES * requests:
        busy = f"{lanes / requests:.0f} of 32 threads of a warp write y at a time"
        raise KernelError(f"rms_norm_tree: {busy}; let each thread fill its own columns")


def run_warp(device: Device, inputs: Values, outputs: Values) -> None:
    _run_rung(device, inputs, outputs, "warp")


def _run_rung(device: Device, inputs: Values, outputs: Values, rung: Any) -> None:
    ops = RMSNormOps(device, None, inputs["x"].dtype)
    ops.rms_norm(inputs["x"], inputs["weight"], inputs["eps"], outputs["y"], rung, inputs["threads"])


def run_squares(device: Device, inputs: Values, outputs: Values) -> None:
    RMSNormOps(device, None, inputs["x"].dtype).squares_by_thread(inputs["x"], outputs["sums"])


def run_fault(device: Device, inputs: Values, outputs: Values) -> None:
    kernel = KernelLibrary(device, np.float32).kernel("ch03_rms_norm/faults/3_4.cu", "smooth")
    kernel((1,), (inputs["a"].size,), (inputs["a"], outputs["b"]))


def like_x(inputs: Values) -> Arrays:
    return {"y": poisoned(*inputs["x"].shape)}


def one_a_thread(inputs: Values) -> Arrays:
    return {"sums": poisoned(len(inputs["x"]), inputs["threads"])}


def as_inputs(x: Any, weight: Any, eps: float, threads: int = 128) -> dict[str, Any]:
    return {"x": x, "weight": weight, "eps": eps, "threads": threads}


OPS = {name: ("rms_norm", as_inputs) for name in ("3.1", "3.3", "3.5")}
TIGHT = 1e-5  # relative: float32 over a tree of sums

TASKS: tuple[Task, ...] = (
    Task(
        exercise="3.1",
        name="rms_norm in NumPy",
        cases=(_case("basic", 3, 8), _case("numbers", 5, 576, kind="embedding")),
        draw=draw,
        outputs=like_x,
        run=run_formula,
        expected=normed,
        secret=secret,
        rtol=TIGHT,
    ),
    Task(
        exercise="3.2",
        name="squares_by_thread",
        cases=(
            _case("basic", 1, 64, 64),
            _case("basic", 3, 576, 64),
            _case("tails", 3, 33, 32),
            _case("tails", 2, 7, 64),
            _case("numbers", 4, 576, 64, "half", 200.0),
            _case("limits", 2, 8192, 256),
        ),
        draw=draw_rows,
        outputs=one_a_thread,
        run=run_squares,
        expected=squares,
        secret=secret_rows,
        rtol=TIGHT,
        atol=1e-12,
        twists={1: squares_of_pairs, 2: squares_of_runs, 3: squares_from_the_last},
        axes=("row", "thread"),
    ),
    Task(
        exercise="3.3",
        name="rms_norm_tree",
        cases=(
            _case("basic", 1, 64, 64),
            _case("basic", 3, 576, 64, "counted"),
            _case("tails", 3, 97, 64),
            _case("tails", 2, 7, 64),
            _case("numbers", 5, 576, 128, "embedding"),
            _case("numbers", 4, 128, 64, "with a zero row", 1e-3),
            _case("limits", 1, 1024, 1024, "one large"),
        ),
        draw=draw,
        outputs=like_x,
        run=run_tree,
        expected=normed,
        secret=secret,
        rtol=TIGHT,
        twists={1: normed_gain_plus_one, 2: normed_by_head, 3: normed_around_mean},
    ),
    Task(
        exercise="3.4",
        name="smooth",
        cases=(Case("basic", {"threads": 128}),),
        draw=draw_column,
        outputs=lambda inputs: {"b": poisoned(inputs["a"].size)},
        run=run_fault,
        expected=smoothed,
        secret=secret_column,
    ),
    Task(
        exercise="3.5",
        name="rms_norm_warp",
        cases=(
            _case("basic", 1, 64, 64),
            _case("tails", 2, 100, 96),
            _case("numbers", 5, 576, 64, "embedding"),
        ),
        draw=draw,
        outputs=like_x,
        run=run_warp,
        expected=normed,
        secret=secret,
        rtol=TIGHT,
    ),
)
