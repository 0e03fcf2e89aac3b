"""Runs a kernel's launches on the copies of its module: on one, or side by side where that pays."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any, Protocol

from tiny_vllm.device.emulator.arguments import Packer
from tiny_vllm.device.emulator.limits import Shape
from tiny_vllm.device.emulator.settings import Settings
from tiny_vllm.device.emulator.waits import may_wait
from tiny_vllm.device.emulator.watchdog import ILLEGAL_ADDRESS, PRINTED, SENTENCES, TIMEOUT, guard
from tiny_vllm.device.emulator.workers import Lane, thread_pool
from tiny_vllm.errors import LaunchError

_WORTH_SHARING = 200e-6  # seconds: waking the other workers takes some 50 us
_SECONDS_A_THREAD = 10e-9  # a first guess; each launch corrects it


class Loaded(Protocol):
    """A compiled module, as its runners see it; launch.RawModule is one."""

    code: str
    settings: Settings
    library: Path
    files: tuple[str, ...]  # that its #line directives name
    workers: int
    lock: threading.Lock

    def copy(self, number: int) -> ctypes.CDLL:
        """The library once more, with static variables of its own."""


class Runner(Protocol):
    """Where a kernel's launches run: in this process, or in a child."""

    def pack(self, args: Sequence[Any]) -> Any:
        """What a launch needs of its checked arguments."""

    def run(self, known: tuple[Shape, bytes], packed: Any, args: Sequence[Any]) -> None: ...


class LocalRunner:
    """Runs in this process, under guard."""

    def __init__(self, module: Loaded, name: str, index: int, packer: Packer) -> None:
        self._module, self._name, self._index = module, name, index
        self._plain = module.settings.order == "forward" and not may_wait(module.code, name)
        self.pack = packer.pack
        self._offsets = packer.offsets
        self._args = bytearray(max(packer.size, 1) + 16)
        self._args_view = (ctypes.c_char * len(self._args)).from_buffer(self._args)
        self._begin = -ctypes.addressof(self._args_view) % 16
        self._end = self._begin + packer.size
        self._next_block = ctypes.c_uint64()
        self._lanes: list[Lane] = []
        self._seconds_a_thread = _SECONDS_A_THREAD

    def run(self, known: tuple[Shape, bytes], packed: bytes, keep: Sequence[Any]) -> None:
        """keep: the arguments; holding them keeps their memory alive."""
        shape, head = known
        threads = shape.num_blocks * shape.num_threads
        with self._module.lock:
            self._args[self._begin : self._end] = packed
            self._next_block.value = 0
            lanes = self._lanes_for(shape.num_blocks, threads * self._seconds_a_thread)
            for lane in lanes:
                lane.prepare(head)
            started = time.perf_counter()
            results = self._run_lanes(lanes)
            self._seconds_a_thread = (time.perf_counter() - started) * len(lanes) / threads
            if any(results):
                self._report(lanes, results)

    def _lanes_for(self, blocks: int, seconds: float) -> list[Lane]:
        """One lane, or as many as there are workers where that pays."""
        wanted = min(self._module.workers, blocks) if seconds > _WORTH_SHARING else 1
        while len(self._lanes) < wanted:
            first = ctypes.addressof(self._args_view) + self._begin
            args = [first + offset for offset in self._offsets]
            library = self._module.copy(len(self._lanes))
            counter = ctypes.addressof(self._next_block)
            self._lanes.append(Lane(library, self._index, self._plain, args, counter))
        return self._lanes[:wanted]

    def _run_lanes(self, lanes: list[Lane]) -> list[int]:
        if len(lanes) == 1:
            return [self._run_lane(lanes[0])]
        pool = thread_pool(self._module.workers - 1)
        helpers = [pool.submit(self._run_lane, lane) for lane in lanes[1:]]
        try:
            mine = self._run_lane(lanes[0])
        finally:
            wait(helpers)
        return [mine, *(helper.result() for helper in helpers)]

    def _run_lane(self, lane: Lane) -> int:
        """Holds the lane, its library and the arguments, though Ctrl-C may have taken the launching thread away."""
        return guard().run(lane.function, lane.record, self._module.settings.timeout)

    def _report(self, lanes: list[Lane], results: list[int]) -> None:
        """Print what the kernel printed; raise for the first worker that did not come to its end."""
        for lane, result in zip(lanes, results, strict=True):
            if result & PRINTED:
                sys.stdout.write(lane.printed)
        for lane, result in zip(lanes, results, strict=True):
            if reason := result & ~PRINTED:
                raise LaunchError(f"{self._name}: {self._sentence(lane, reason)}")

    def _sentence(self, lane: Lane, reason: int) -> str:
        detail, sentence = lane.error, SENTENCES[reason]
        lane.clear_error()
        if reason == TIMEOUT:
            return f"{sentence}: no end after {self._module.settings.timeout:g} s; is there an endless loop?"
        if reason == ILLEGAL_ADDRESS:
            return f"{sentence}, at {lane.fault_address:#x}; is an index outside its array?"
        return f"{sentence}: {detail}" if detail else sentence
