"""What checks chapter 42."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from chapters._cases import Case, Task, poisoned
from tiny_vllm.device.base import Device
from tiny_vllm.device.library import KernelLibrary

SOURCE = "ch42_sums/sums.cu"
CASES = (
    Case("basic", {"rows": 2, "columns": 64, "threads": 64}),
    Case("tails", {"rows": 3, "columns": 33, "threads": 32}),
    Case("numbers", {"rows": 2, "columns": 7, "threads": 8}, scale=1e-3),
    Case("limits", {"rows": 1, "columns": 1000, "threads": 256}),
)


def _draw(rng: np.random.Generator, case: Case) -> dict[str, Any]:
    x = rng.normal(size=(case.sizes["rows"], case.sizes["columns"])) * case.scale
    return {"x": x.astype(np.float32), "threads": case.sizes["threads"], "factor": 3.0}


def _secret(rng: np.random.Generator, group: str) -> Case:
    sizes = {"rows": rng.integers(1, 4), "columns": rng.integers(1, 300), "threads": 2 ** rng.integers(5, 8)}
    return Case(group, {name: int(size) for name, size in sizes.items()}, scale=float(10 ** rng.uniform(-2, 2)))


def _double(device: Device, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    double = import_module("chapters.ch42_sums.warm_up").double
    device.copy_in(outputs["y"], double(device.to_host(inputs["x"])))


def _scale_rows(device: Device, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    x = inputs["x"]
    kernel = KernelLibrary(device, np.float32).kernel(SOURCE, "scale_rows")
    kernel((x.shape[0],), (inputs["threads"],), (x, outputs["y"], x.shape[1], inputs["factor"]))


def _row_sum(device: Device, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    x = inputs["x"]
    kernel = KernelLibrary(device, np.float32).kernel(SOURCE, "row_sum")
    kernel((x.shape[0],), (inputs["threads"],), (x, outputs["total"], x.shape[1]))


def _largest(device: Device, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    kernel = KernelLibrary(device, np.float32).kernel("ch42_sums/faults/42_4.cu", "largest")
    kernel((1,), (inputs["x"].shape[0],), (inputs["x"], outputs["result"]))


def _draw_one(rng: np.random.Generator, case: Case) -> dict[str, Any]:
    return {"x": rng.normal(size=case.sizes["threads"]).astype(np.float32)}


def _table(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {"y": poisoned(*inputs["x"].shape)}


def _sums(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {"total": inputs["x"].astype(np.float64).sum(axis=1)}


TASKS = (
    Task("42.1", "double", CASES[:2], _draw, _table, _double, lambda i: {"y": i["x"] + i["x"]}, _secret),
    Task(
        "42.2",
        "scale_rows",
        CASES,
        _draw,
        _table,
        _scale_rows,
        lambda i: {"y": i["factor"] * i["x"] + 1.0},
        _secret,
        twists={1: lambda i: {"y": i["factor"] * i["x"] + 2.0}},
    ),
    Task(
        "42.3", "row_sum", CASES, _draw, lambda i: {"total": poisoned(len(i["x"]))}, _row_sum, _sums, _secret, atol=1e-4
    ),
    Task(
        "42.4",
        "largest",
        (Case("basic", {"threads": 64}),),
        _draw_one,
        lambda i: {"result": poisoned(1)},
        _largest,
        lambda i: {"result": i["x"].max(keepdims=True)},
        _secret,
    ),
)
