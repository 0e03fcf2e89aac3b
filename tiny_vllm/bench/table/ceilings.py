"""What the machine reaches by itself: bandwidth, and cuBLAS at the model's own shapes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from tiny_vllm.bench.ops.inputs import ROTATE_BYTES, Inputs
from tiny_vllm.bench.ops.operation import Sizes
from tiny_vllm.bench.ops.operations import products
from tiny_vllm.bench.ops.timer import PRODUCT, Timer
from tiny_vllm.device.base import Device
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.device.source import as_dtype
from tiny_vllm.models.config import ModelConfig

READ_BYTES, READS = 4 << 30, 7
BLOCKS, THREADS = 4096, 256  # of a read
LAYER, HEAD = ("qkv", "o", "gate_up", "down"), ("head",)


@dataclass(frozen=True)
class Ceilings:
    """copy, read: bytes a second, of a copy both the read and the written ones. flops: FLOPs a second of a large
    product of the model's element type. layers, head: seconds that the weight products of one step take by rows.
    """

    copy: float
    read: float
    flops: float
    layers: dict[int, float]
    head: dict[int, float]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, whose keys are texts."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Ceilings:
        """What as_dict gave, through JSON."""
        by_rows = {name: {int(rows): s for rows, s in found[name].items()} for name in ("layers", "head")}
        return cls(**{**found, **by_rows})


def measure_ceilings(
    device: Device, config: ModelConfig, dtype: Any, layer_rows: Iterable[int], head_rows: Iterable[int]
) -> Ceilings:
    """The rows are those of the products. On the emulator the arrays are small, and no figure speaks of a GPU."""
    is_small = device.name == "emulator"
    timer = Timer(Inputs(device, dtype, 1 << 20 if is_small else ROTATE_BYTES), 1 << 18 if is_small else ROTATE_BYTES)
    machine = timer.machine(256 if is_small else PRODUCT)
    read = _read(timer, 1 << 22 if is_small else READ_BYTES)
    sizes, cublas = Sizes(config, as_dtype(dtype).itemsize), _cublas(device)

    def seconds(names: tuple[str, ...], count: int) -> float:
        return sum(timer.measure(cublas, make(sizes, count)) for make in products(sizes, *names))

    layers = {count: config.num_hidden_layers * seconds(LAYER, count) for count in sorted(set(layer_rows))}
    head = {count: seconds(HEAD, count) for count in sorted(set(head_rows))}
    return Ceilings(machine.bandwidth, read, machine.flops, layers, head)


def _cublas(device: Device) -> Any:
    """A set of operations whose product is the device's own, at any size."""
    return SimpleNamespace(
        reserve=lambda *sizes: None,
        linear=lambda x, weight, out, add=False: device.gemm(x, weight, out, add),
    )


def _read(timer: Timer, wanted: int) -> float:
    """Bytes a second of kernels/read_bandwidth.cu."""
    device = timer.device
    size = min(wanted, device.memory_info()[0] // 4) // 16 * 16
    x, out = device.zeros(size // 4, np.uint32), device.zeros(1, np.uint32)
    kernel = KernelLibrary(device, np.float32).kernel("read_bandwidth.cu", "read_bandwidth")
    grid = (max(1, min(BLOCKS, size // 16 // THREADS)),)
    times = [timer.seconds(lambda: kernel(grid, (THREADS,), (x, out, size // 16))) for _ in range(READS)]
    return size / statistics.median(times)
