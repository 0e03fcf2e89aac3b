"""RawModule and RawKernel with CuPy's signatures, on the CPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

from tiny_vllm.device.emulator.arguments import Packer, complete
from tiny_vllm.device.emulator.build import build_kernels, preprocess
from tiny_vllm.device.emulator.check.build import build_checked
from tiny_vllm.device.emulator.check.counts import Report
from tiny_vllm.device.emulator.check.run import CheckedRunner
from tiny_vllm.device.emulator.isolate import IsolatedRunner
from tiny_vllm.device.emulator.limits import STATIC_SHARED, Shape, check_shape, opt_in_shared, refuse
from tiny_vllm.device.emulator.options import parse_options
from tiny_vllm.device.emulator.runner import LocalRunner, Runner
from tiny_vllm.device.emulator.settings import Settings
from tiny_vllm.device.emulator.shared_usage import static_shared_bytes
from tiny_vllm.device.emulator.translate import (
    callable_kernels,
    has_conditional_kernels,
    has_mutable_globals,
    reader_files,
    translation_unit,
)
from tiny_vllm.device.emulator.workers import SHAPE, load_copy
from tiny_vllm.device.signature import Parameter, Signature, kernel_names, parse_parameters
from tiny_vllm.errors import CompileError, KernelError

_SHAPES_KEPT = 4096


class RawModule:
    """A compiled .cu text.

    code: the text, as load_source gives it. options: as NVRTC's (options.py). name_expressions: the instances of
    templates that get_function shall find, "rms_norm<float, 256>". settings: the fields of Settings.
    Raises CompileError with the compiler's message.
    """

    def __init__(
        self, code: str, options: Sequence[str] = (), name_expressions: Sequence[str] = (), **settings: Any
    ) -> None:
        self.settings = Settings(**settings)
        self.code, self.options = code, tuple(options)
        self.name_expressions = tuple(name_expressions)
        self._parsed = parse_options(options)
        architecture = f"-D__CUDA_ARCH__={self.settings.compute_capability * 10}"
        flags = (*self._parsed.flags, architecture, "-DTINY_VLLM_EMULATOR")
        text = preprocess(code, flags) if has_conditional_kernels(code) else code
        self.names = [*callable_kernels(text, kernel_names(text)), *name_expressions]
        unit = translation_unit(code, self.names, _file_name(self.names))
        self.files = tuple(reader_files(unit))  # the names that its lines go by
        checked = self.settings.check and not self.settings.isolated  # the child checks, then
        self.library = build_checked(unit, flags, self.settings.count) if checked else build_kernels(unit, flags)
        self.workers = 1 if has_mutable_globals(code) or checked else self.settings.workers
        self.lock = threading.Lock()  # static variables of a copy are one launch's at a time
        self._copies: list[ctypes.CDLL] = []

    def get_function(self, name: str) -> RawKernel:
        """The kernel of that name: `extern "C"`, or one of name_expressions. Raises KernelError when there is none."""
        return RawKernel._of(self, name)

    def index(self, name: str) -> int:
        """Where the kernel stands among the module's entries. Raises LaunchError when CUDA would not find it."""
        if name not in self.names:
            have = ", ".join(self.names) or "none"
            detail = f'the module has {have}; a kernel is found by its name when it is extern "C"'
            raise refuse(name, detail, code="NOT_FOUND", words="named symbol not found")
        return self.names.index(name)

    def copy(self, number: int) -> ctypes.CDLL:
        """The copy that worker `number` drives, loaded when it is first wanted."""
        while len(self._copies) <= number:
            self._copies.append(load_copy(self.library))
            self._copies[-1].emulator_set_order(int(self.settings.order == "reverse"))
        return self._copies[number]

    @property
    def shared_section_bytes(self) -> int:
        """Static shared memory of all the module's kernels together."""
        count = self.copy(0).emulator_static_shared_bytes
        count.restype = ctypes.c_ulonglong
        return int(count())

    def parameters(self, name: str) -> list[Parameter]:
        return parse_parameters(self.code, name, self._parsed.defines)


def _file_name(kernels: Sequence[str]) -> str:
    """What messages call a text that does not say so itself by #line."""
    return f"{kernels[0].partition('<')[0] if kernels else 'kernel'}.cu"


class RawKernel:
    """One `__global__` function, launched as CuPy's: kernel(grid, block, args, shared_mem=bytes)."""

    def __init__(self, code: str, name: str, options: Sequence[str] = (), **settings: Any) -> None:
        template = (name,) if "<" in name else ()
        self._set_up(RawModule(code, options, name_expressions=template, **settings), name)

    @classmethod
    def _of(cls, module: RawModule, name: str) -> RawKernel:
        kernel = cls.__new__(cls)
        kernel._set_up(module, name)
        return kernel

    def _set_up(self, module: RawModule, name: str) -> None:
        self.name, self._module = name, module
        declared = module.parameters(name)
        index = module.index(name)
        describe = getattr(module.copy(0), f"emulator_signature_{index}")
        describe.restype = ctypes.c_char_p
        codes = [code for code in describe().decode().split(",") if code]
        parameters = complete(declared, codes)
        self._check = Signature(name, parameters).check
        self._runner = _runner(module, name, index, codes, parameters)
        self._recorder = module.settings.recorder
        section, gaps = module.shared_section_bytes, isinstance(self._runner, CheckedRunner)
        self.shared_size_bytes = static_shared_bytes(module.library, section, name, module.names, gaps)
        if self.shared_size_bytes > STATIC_SHARED:
            raise CompileError(
                f"{name} uses too much shared data ({self.shared_size_bytes} bytes, {STATIC_SHARED} max); "
                "more is to be had as dynamic shared memory"
            )
        self._max_dynamic = STATIC_SHARED - self.shared_size_bytes
        self._shapes: dict[Any, tuple[Shape, bytes]] = {}

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """How much dynamic shared memory a launch may ask for, in bytes; can be raised to the architecture's limit."""
        return self._max_dynamic

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        limit = opt_in_shared(self._module.settings.compute_capability) - self.shared_size_bytes
        if not 0 <= size <= limit:
            raise refuse(self.name, f"max_dynamic_shared_size_bytes is {size}; the limit is {limit}")
        self._max_dynamic = size
        self._shapes.clear()

    def __call__(
        self, grid: Any, block: Any, args: Sequence[Any], *, shared_mem: int = 0, programmatic: bool = False
    ) -> None:
        """Run it to its end, or record it while a graph is captured; kernels never overlap, programmatic or not.

        Raises TypeError for arguments that do not fit the declaration, LaunchError for what CUDA refuses and for what
        goes wrong while it runs.
        """
        checked = self._check(args)
        try:
            shape = self._shapes.get((grid, block, shared_mem)) or self._shape(grid, block, shared_mem)
        except TypeError:  # a list, which no dict can look up, or what check_shape refuses
            shape = self._shape(grid, block, shared_mem)
        packed = self._runner.pack(checked)
        recorder = self._recorder
        if recorder is None or not recorder.capturing:
            self._runner.run(shape, packed, checked)
        else:
            recorder.record(lambda: self._runner.run(shape, packed, checked))

    def report(self) -> Report:
        """What the last launch asked of the memory, line by line; of a kernel made with check=True, count=True."""
        if not isinstance(self._runner, CheckedRunner):
            raise KernelError(f"{self.name}: nothing was counted; make the kernel with check=True, count=True")
        return self._runner.report()

    def _shape(self, grid: Any, block: Any, shared_mem: int) -> tuple[Shape, bytes]:
        shape = check_shape(self.name, grid, block, shared_mem, self._max_dynamic)
        known = shape, SHAPE.pack(*shape.grid, *shape.block, shape.num_blocks, shape.shared_mem)
        if len(self._shapes) < _SHAPES_KEPT:
            self._shapes[tuple(grid), tuple(block), shared_mem] = known
        return known


def _runner(module: RawModule, name: str, index: int, codes: Sequence[str], parameters: Sequence[Parameter]) -> Runner:
    if module.settings.isolated:
        return IsolatedRunner(module, name)
    if module.settings.check:
        return CheckedRunner(module, name, index, codes, parameters)
    return LocalRunner(module, name, index, Packer(codes, name))
