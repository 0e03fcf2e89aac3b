"""How long each operation of a step takes on its own, beside the floor: bytes and FLOPs at what the GPU reaches.

A time is the median over replays of one captured graph of many launches, whose inputs rotate through memory; before a
replay the L2 cache is swept, so that every launch reads what no launch before has left there. What a launch costs on
the device is part of it. The emulator's times say nothing about a GPU: there, bytes and FLOPs are counted, no more.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiny_vllm.bench.ops.inputs import ROTATE_BYTES, Inputs
from tiny_vllm.bench.ops.operation import Operation
from tiny_vllm.device.base import Device
from tiny_vllm.ops.base import Ops

PRODUCT = 8192  # rows and columns of the large product whose rate is the floor of FLOPs
MOST_LAUNCHES, REPLAY_SECONDS = 400, 0.02  # of one graph
REPLAYS, WARM_UPS = 20, 2
SWEEP_COLUMNS = 1 << 16


@dataclass(frozen=True)
class Machine:
    """What the device reaches, measured: bytes a second of a copy, FLOPs a second of a large product."""

    bandwidth: float
    flops: float


@dataclass(frozen=True)
class Row:
    """An operation and its seconds by set of operations: None where the set lacks it or nothing is measured."""

    operation: Operation
    seconds: Mapping[str, float | None]


class Timer:
    """Measures launches on one device."""

    def __init__(self, inputs: Inputs, sweep_bytes: int = ROTATE_BYTES) -> None:
        self.device, self.inputs = inputs.device, inputs
        rows = max(1, sweep_bytes // (4 * SWEEP_COLUMNS))
        self._swept = self.device.zeros((rows, SWEEP_COLUMNS), np.float32)
        self._ids = self.device.zeros(rows, np.int32)

    def measure(self, ops: Ops, operation: Operation) -> float:
        """Seconds of one launch."""
        ops.reserve(operation.rows, operation.requests, operation.max_len)
        self.inputs.reset()
        first = operation.arrays(self.inputs)
        operation.launch(ops, *first)  # compiles, and allocates what is left to allocate
        once = self.seconds(lambda: operation.launch(ops, *first))
        count = num_launches(operation.num_bytes, once)
        sets = [operation.arrays(self.inputs) for _ in range(count)]
        with self.device.capture() as graph:
            for arrays in sets:
                operation.launch(ops, *arrays)
        replays = REPLAYS if once < REPLAY_SECONDS else 3
        seconds = [self.seconds(graph.launch) for _ in range(WARM_UPS + replays)]
        return statistics.median(seconds[WARM_UPS:]) / count

    def machine(self, size: int = PRODUCT) -> Machine:
        """Bandwidth, and the rate of a product of the inputs' element type, (size,size) x (size,size)."""
        new, device = self.inputs.new, self.device
        x, weight, out = new(size, size), new(size, size), self.inputs.out(size, size)
        seconds = [self.seconds(lambda: device.gemm(x, weight, out)) for _ in range(WARM_UPS + 5)]
        return Machine(device.bandwidth(), 2 * size**3 / statistics.median(seconds[WARM_UPS:]))

    def seconds(self, run: Callable[[], Any]) -> float:
        """On the device, with nothing of use in its L2 cache at the start."""
        start, end = self.device.event(), self.device.event()
        self.inputs.argmax(self._swept, out=self._ids)
        start.record()
        run()
        end.record()
        end.synchronize()
        return end.elapsed_ms(start) / 1e3


def num_launches(num_bytes: int, seconds: float) -> int:
    """Of one graph: as many as rotate through ROTATE_BYTES, within MOST_LAUNCHES and REPLAY_SECONDS; 2 at least."""
    rotating, quick = -(-ROTATE_BYTES // num_bytes), int(REPLAY_SECONDS / max(seconds, 1e-9))
    return max(2, min(MOST_LAUNCHES, rotating, quick))


def measure(
    device: Device, dtype: Any, sets: Mapping[str, Ops], operations: Iterable[Operation]
) -> tuple[Machine | None, list[Row]]:
    """Every operation by every set that has it; on the emulator no machine and no times."""
    if device.name == "emulator":
        return None, [Row(each, dict.fromkeys(sets)) for each in operations]
    timer, rows = Timer(Inputs(device, dtype)), []
    machine = timer.machine()
    for each in operations:
        having = {name: ops for name, ops in sets.items() if ops.name == "tuned" or not each.engine_only}
        seconds = {name: timer.measure(ops, each) for name, ops in having.items()}
        rows.append(Row(each, dict.fromkeys(sets) | seconds))
    return machine, rows
