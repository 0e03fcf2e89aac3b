"""Runs a kernel's launches under check: one block after another, every load and store watched."""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from collections.abc import Sequence
from typing import Any

from tiny_vllm.device.emulator.arguments import Packer
from tiny_vllm.device.emulator.check.counts import Report, read_report
from tiny_vllm.device.emulator.check.findings import Code, Finding, Record, read_records
from tiny_vllm.device.emulator.check.memory import Arena
from tiny_vllm.device.emulator.check.sentences import SENTENCES
from tiny_vllm.device.emulator.check.symbols import DYNAMIC, Lines, variables
from tiny_vllm.device.emulator.check.words import Words
from tiny_vllm.device.emulator.limits import Shape
from tiny_vllm.device.emulator.runner import Loaded, LocalRunner
from tiny_vllm.device.emulator.watchdog import TIMEOUT
from tiny_vllm.device.emulator.workers import RECORD, Lane
from tiny_vllm.device.signature import Parameter
from tiny_vllm.errors import DeviceError, KernelCheckError, KernelError, LaunchError

_VARIABLE = struct.Struct("@QQII")  # struct Variable of cpp/check/state.h
_NOTE = struct.Struct("@11Q")  # struct LaunchNote of cpp/check/runtime.cpp
_one_at_a_time = threading.Lock()  # the arena is the process's
_DYNAMIC_NAME = re.compile(r"\b(?:extern\b[^;]*?\b__shared__|__shared__\s+extern)\b[^;]*?(\w+)\s*\[\s*\]")


class CheckedRunner(LocalRunner):
    """Runs in this process, on copies of the arrays; raises KernelCheckError with all that one launch shows."""

    def __init__(
        self, module: Loaded, name: str, index: int, codes: Sequence[str], parameters: Sequence[Parameter]
    ) -> None:
        self._packer = Packer(codes, name)
        super().__init__(module, name, index, self._packer)
        self.pack = lambda args: args  # type: ignore[assignment, return-value]  # the arena's addresses come later
        self._plain = False
        self._parameters = parameters
        self._names = [parameter.name for parameter in parameters]
        self._variables = variables(module.library)
        self._lines = Lines(module.library, module.files)
        self._reason = 0
        self._report_of_last: Report | None = None
        self._library = module.copy(0)
        self._describe_variables()

    def report(self) -> Report:
        """The counters of the last launch."""
        if not self._module.settings.count:
            raise KernelError(f"{self._name}: nothing was counted; make the kernel with check=True, count=True")
        if self._report_of_last is None:
            raise KernelError(f"{self._name}: nothing was launched yet; the report is of the last launch")
        return self._report_of_last

    def run(self, known: tuple[Shape, bytes], packed: Sequence[Any], args: Sequence[Any]) -> None:
        """Raises KernelCheckError for what is found, LaunchError for a launch that ended for another reason."""
        with _one_at_a_time:
            self._reason, arena = 0, Arena(packed, self._parameters)
            self._announce(arena, known[0])
            ended: LaunchError | None = None
            try:
                super().run(known, self._packer.pack(arena.arguments()), packed)
            except LaunchError as error:
                ended = error
            try:
                arena.copy_back()
                self._finish(known[0], packed, arena, ended)
            finally:
                arena.room.epoch = self._library.check_end()

    def _finish(self, shape: Shape, args: Sequence[Any], arena: Arena, ended: LaunchError | None) -> None:
        words = Words(self._name, shape, self._names, args, self._variables, self._dynamic_name())
        records = read_records(self._library, self._lines)
        if self._reason == TIMEOUT:
            records.append(self._endless())
        if self._module.settings.count:
            self._report_of_last = read_report(self._name, self._library, self._lines, arena.begin)
        if records:
            findings = [words.finding(record, SENTENCES[record.code]) for record in records]
            raise KernelCheckError(message(self._name, findings, ended is not None), findings) from None
        if ended is not None:
            raise ended

    def _endless(self) -> Record:
        last = [ctypes.c_uint64() for _ in range(3)]
        self._library.check_last(*map(ctypes.byref, last))
        thread, block, counter = (each.value for each in last)
        base = self._library.check_module_base()
        lines = self._lines.of([self._lanes[0].fault_address - base + 1]) or self._lines.of([counter])
        text = f"after {self._module.settings.timeout:g} s"
        return Record(Code.ENDLESS, thread=thread, block=block, text=text, lines=tuple(lines))

    def _sentence(self, lane: Lane, reason: int) -> str:
        self._reason = reason
        return super()._sentence(lane, reason)

    # ---- what the runtime is told

    def _describe_variables(self) -> None:
        self._library.check_module_base.restype = ctypes.c_uint64
        self._library.check_findings.restype = ctypes.c_uint64
        self._library.check_counts.restype = ctypes.c_uint64
        self._library.check_end.restype = ctypes.c_uint64
        base = self._library.check_module_base()
        packed = [_VARIABLE.pack(base + v.begin, v.size, v.kind, n) for n, v in enumerate(self._variables)]
        if not self._library.check_variables(b"".join(packed), ctypes.c_uint64(len(packed))):
            raise DeviceError("check mode has no memory for its notes; end other programs")

    def _announce(self, arena: Arena, shape: Shape) -> None:
        regions, num_regions, views, num_views = arena.tables()
        lane = self._lanes_for(1, 0.0)[0]
        ranges = struct.pack("@6Q", *self._own_memory(lane))
        dynamic = next((v.begin for v in self._variables if v.kind == DYNAMIC), 0)
        memory = (arena.begin, arena.size, arena.slot_bits, arena.room.shadow, arena.room.epoch)
        dynamic_begin = self._library.check_module_base() + dynamic
        counts = (num_regions, num_views, len(ranges) // 16)
        note = _NOTE.pack(*memory, *counts, dynamic_begin, shape.shared_mem, self._module.settings.count)
        self._library.check_begin(note, regions, views, ranges)

    def _own_memory(self, lane: Lane) -> list[int]:
        """Begin and end of the launch record, the arguments' values, and the pointers to them."""
        values, pointers = ctypes.addressof(self._args_view), ctypes.addressof(lane.pointers)
        return [
            lane.record,
            lane.record + RECORD.size,
            values,
            values + len(self._args),
            pointers,
            pointers + ctypes.sizeof(lane.pointers),
        ]

    def _dynamic_name(self) -> str:
        match = _DYNAMIC_NAME.search(self._module.code)
        return match[1] if match else "dynamic memory"


def message(kernel: str, findings: Sequence[Finding], ended: bool) -> str:
    """All findings, a line each."""
    count = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
    end = ["the launch ended there: what it left is incomplete"] if ended else []
    return "\n".join([f"{kernel}: check mode has {count}", *map(str, findings), *end])
