"""Sources that say `requires: sm_90a`: compiled for that architecture alone, kept on disk, loaded by CuPy."""

# ruff: noqa: N802  (the pretended compiler has the names of CuPy's)

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tiny_vllm import cache
from tiny_vllm.device import cuda_cubin
from tiny_vllm.errors import CompileError, DeviceError, KernelError, LaunchError, UserError

CODE = """// requires: sm_90a
#include <cuda_bf16.h>
#if !defined(TINY_VLLM_EMULATOR) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "compiled for another architecture"
#endif
extern "C" __global__ void scale(const float* x, float* y, int n, float factor) {
    extern __shared__ float room[];
    room[threadIdx.x] = factor;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * room[threadIdx.x ^ 1] + FIRST;
}
extern "C" __global__ void other(float* y) { y[threadIdx.x] = __bfloat162float(__float2bfloat16(1.0f)); }
"""
FIRST = ("-DFIRST=1.0f",)
N, FACTOR, BLOCK = 1000, np.float32(3), 128
GRID = (N + BLOCK - 1) // BLOCK


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cubin"


# ---- on a device


@pytest.fixture
def only_cuda(device: Any) -> None:
    if device.name != "cuda":
        pytest.skip("needs --device cuda")


@pytest.fixture(autouse=True)
def needs_sm_90(request: pytest.FixtureRequest) -> None:
    if "device" in request.fixturenames and request.getfixturevalue("device").compute_capability != 90:
        pytest.skip("needs a device of sm_90")


def launched(device: Any, kernel: Any, **settings: Any) -> np.ndarray:
    x, y = device.asarray(np.arange(N, dtype=np.float32)), device.zeros(N, np.float32)
    kernel((GRID,), (BLOCK,), (x, y, N, FACTOR), shared_mem=4 * BLOCK, **settings)
    return device.to_host(y)


EXPECTED = np.arange(N, dtype=np.float32) * FACTOR + 1


@pytest.mark.parametrize("maker", ["RawKernel", "RawModule"])
def test_it_runs(device, maker):
    if maker == "RawKernel":
        kernel = device.RawKernel(CODE, "scale", FIRST)
    else:
        kernel = device.RawModule(CODE, FIRST).get_function("scale")
    assert kernel.name == "scale"
    assert (launched(device, kernel) == EXPECTED).all()
    assert (launched(device, kernel, programmatic=True) == EXPECTED).all()


def test_a_module_has_all_its_kernels(device):
    module, y = device.RawModule(CODE, options=FIRST), device.zeros(32, np.float32)
    module.get_function("other")((1,), (32,), (y,))
    assert (device.to_host(y) == 1).all()
    assert (launched(device, module.get_function("scale")) == EXPECTED).all()
    with pytest.raises(KernelError, match="scale"):
        module.get_function("no_such_kernel")


def test_options_are_told_apart(device):
    kernel = device.RawKernel(CODE, "scale", ("-DFIRST=5.0f",))
    assert (launched(device, device.RawKernel(CODE, "scale", FIRST)) == EXPECTED).all()
    assert (launched(device, kernel) == EXPECTED + 4).all()


def test_it_is_captured_into_a_graph(device):
    kernel, y = device.RawKernel(CODE, "scale", FIRST), device.zeros(N, np.float32)
    x = device.asarray(np.zeros(N, np.float32))
    with device.capture() as graph:
        kernel((GRID,), (BLOCK,), (x, y, N, FACTOR), shared_mem=4 * BLOCK)
    device.copy_in(x, np.arange(N))
    graph.launch()
    assert (device.to_host(y) == EXPECTED).all()


def test_a_large_shared_memory(device):
    kernel = device.RawKernel(CODE, "scale", FIRST)
    size = 200 << 10
    kernel.max_dynamic_shared_size_bytes = size
    kernel.preferred_shared_memory_carveout = 100
    assert kernel.max_dynamic_shared_size_bytes == size
    x, y = device.asarray(np.arange(N, dtype=np.float32)), device.zeros(N, np.float32)
    kernel((GRID,), (BLOCK,), (x, y, N, FACTOR), shared_mem=size)
    assert (device.to_host(y) == EXPECTED).all()


def test_arguments_are_checked(device):
    x, y = device.zeros(N, np.int32), device.zeros(N, np.float32)
    with pytest.raises(TypeError, match="scale: argument x "):
        device.RawKernel(CODE, "scale", FIRST)((1,), (32,), (x, y, N, FACTOR))


def test_wrong_code_names_the_readers_line(device):
    wrong = '#line 1 "work/mine.cu"\n' + CODE.replace("factor;", "fakctor;")
    for maker in (lambda: device.RawKernel(wrong, "scale", FIRST), lambda: device.RawModule(wrong, FIRST)):
        with pytest.raises(CompileError, match=r"mine\.cu[:(]8\b[^\n]*error[^\n]*fakctor"):
            maker()


@pytest.mark.usefixtures("only_cuda")
def test_the_second_time_nothing_is_compiled(device, monkeypatch, own_cache):
    mine = CODE + "// by nobody else\n"
    assert (launched(device, device.RawKernel(mine, "scale", FIRST)) == EXPECTED).all()
    (made,) = own_cache.iterdir()
    monkeypatch.setattr(cuda_cubin, "_compile", None)
    assert (launched(device, device.RawKernel(mine, "scale", FIRST)) == EXPECTED).all()
    assert (launched(device, device.RawModule(mine, FIRST).get_function("scale")) == EXPECTED).all()
    assert list(own_cache.iterdir()) == [made]


@pytest.mark.usefixtures("only_cuda")
def test_all_blocks_at_the_same_time(device):
    kernel = device.RawKernel(CODE, "scale", FIRST, enable_cooperative_groups=True)
    assert (launched(device, kernel) == EXPECTED).all()
    kernel = device.RawKernel(CODE, "scale", FIRST)
    kernel.cooperative = True
    assert (launched(device, kernel) == EXPECTED).all()
    x = device.zeros(N, np.float32)
    with pytest.raises(LaunchError, match=r"scale: .*grid \(1000000,\)"):
        kernel((1_000_000,), (BLOCK,), (x, x, N, FACTOR), shared_mem=4 * BLOCK)


# ---- the file, with a compiler that only pretends


class FakeNvrtc:
    """As cupy.cuda.nvrtc: `wrong` in a text is an error, and machine code is the text again."""

    class NVRTCError(RuntimeError):
        pass

    def __init__(self) -> None:
        self.version, self.open = (13, 0), 0
        self.programs: list[dict[str, Any]] = []

    def getVersion(self) -> tuple[int, int]:
        return self.version

    def createProgram(self, code: str, name: str, headers: tuple[()], include_names: tuple[()]) -> int:
        self.programs.append({"code": code, "name": name})
        self.open += 1
        return len(self.programs) - 1

    def compileProgram(self, program: int, options: tuple[str, ...]) -> None:
        self.programs[program]["options"] = options
        if "wrong" in self.programs[program]["code"]:
            raise self.NVRTCError("NVRTC_ERROR_COMPILATION (6)")

    def getCUBIN(self, program: int) -> bytes:
        return f"machine code of {self.programs[program]['code']}".encode()

    def getProgramLog(self, program: int) -> str:
        return '\nmine.cu(3): error: identifier "wrong" is undefined\n'

    def destroyProgram(self, program: int) -> None:
        self.open -= 1


@pytest.fixture
def nvrtc(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> FakeNvrtc:
    fake = FakeNvrtc()
    monkeypatch.setattr(cuda_cubin, "import_cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(nvrtc=fake)))
    monkeypatch.setattr(cuda_cubin, "_headers", lambda: "/headers")
    return fake


def test_it_is_compiled_once_with_the_options_that_cupy_adds(nvrtc, own_cache):
    file = cuda_cubin.cubin_file("a", "90a", ("-std=c++17", "-DN=1"))
    assert file == cuda_cubin.cubin_file("a", "90a", ("-std=c++17", "-DN=1"))
    assert file.parent == own_cache and file.suffix == ".cubin" and file.read_bytes() == b"machine code of a"
    assert list(own_cache.iterdir()) == [file]
    (program,) = nvrtc.programs
    assert set(program["options"]) == {
        "-std=c++17", "-DN=1", "-I/headers", "-ftz=true", "--device-as-default-execution-space", "-arch=sm_90a",
    }  # fmt: skip
    assert nvrtc.open == 0


def test_whatever_matters_makes_another_file(nvrtc):
    files = [cuda_cubin.cubin_file(*each) for each in (("a", "90a", ()), ("b", "90a", ()), ("a", "90a", ("-DN",)))]
    nvrtc.version = (13, 1)
    files.append(cuda_cubin.cubin_file("a", "90a", ()))
    assert len(set(files)) == len(nvrtc.programs) == 4


def test_half_a_file_is_made_again(nvrtc):
    file = cuda_cubin.cubin_file("a", "90a", ())
    file.write_bytes(file.read_bytes()[:5])
    assert cuda_cubin.cubin_file("a", "90a", ()).read_bytes() == b"machine code of a"
    assert len(nvrtc.programs) == 2


def test_an_error_is_the_compilers_log(nvrtc, own_cache):
    with pytest.raises(CompileError, match=r'^mine\.cu\(3\): error: identifier "wrong" is undefined$'):
        cuda_cubin.cubin_file("wrong", "90a", ())
    assert nvrtc.open == 0 and not list(own_cache.iterdir())


@pytest.fixture
def new_stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "stand_in"
    folder.mkdir()
    monkeypatch.setattr(cache, "_temporary_root", lambda: folder)
    return folder


def test_a_folder_that_cannot_be_written(nvrtc, monkeypatch, tmp_path, new_stand_in):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path / "file" / "below"))
    file = cuda_cubin.cubin_file("a", "90a", ())
    assert file.parent == new_stand_in / "cubin" and file.read_bytes() == b"machine code of a"


def test_a_full_disk(nvrtc, monkeypatch, own_cache, new_stand_in):
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if own_cache in path.parents:
            write(path, data[:3])
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    file = cuda_cubin.cubin_file("a", "90a", ())
    assert file.parent == new_stand_in / "cubin" and file.read_bytes() == b"machine code of a"
    assert not list(own_cache.iterdir())


# ---- what CuPy is given


class FakeRaw:
    """As cupy.RawModule and cupy.RawKernel."""

    def __init__(self, *args: Any, enable_cooperative_groups: bool = False, **settings: Any) -> None:
        self.args, self.settings, self.module, self.kernel = args, settings, "module", "kernel"
        self.enable_cooperative_groups = enable_cooperative_groups

    def get_function(self, name: str) -> FakeRaw:
        return self


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, nvrtc: FakeNvrtc) -> Any:
    """A cuda_launch of its own with a CuPy that only pretends."""
    driver = SimpleNamespace(CUDADriverError=type("CUDADriverError", (RuntimeError,), {}))
    compiler = SimpleNamespace(CompileException=type("CompileException", (Exception,), {}))
    runtime = SimpleNamespace(driverGetVersion=lambda: 13000)
    cuda = SimpleNamespace(runtime=runtime, driver=driver, compiler=compiler, nvrtc=nvrtc)
    cupy = SimpleNamespace(cuda=cuda, ndarray=np.ndarray, RawKernel=FakeRaw, RawModule=FakeRaw)
    monkeypatch.setattr("tiny_vllm.device.cupy_setup.import_cupy", lambda: cupy)
    spec = importlib.util.find_spec("tiny_vllm.device.cuda_launch")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOPPER = SimpleNamespace(compute_capability=90, description="NVIDIA H200", stream=None)


def test_cupy_loads_the_file(launch, nvrtc, own_cache, monkeypatch):
    monkeypatch.delenv("TINY_VLLM_CHECK", raising=False)
    module = launch.compile_module(HOPPER, CODE, FIRST, {})
    kernel = launch.compile_kernel(HOPPER, CODE, "scale", FIRST, {"enable_cooperative_groups": True})
    (file,) = own_cache.iterdir()
    assert module.get_function("scale")._raw.settings == kernel._raw.settings == {"path": str(file)}
    assert not module.get_function("other")._cooperative and kernel._cooperative
    assert "-std=c++17" in nvrtc.programs[0]["options"] and "-DFIRST=1.0f" in nvrtc.programs[0]["options"]
    assert "-lineinfo" not in nvrtc.programs[0]["options"]


def test_check_asks_for_lines(launch, nvrtc, monkeypatch):
    monkeypatch.setenv("TINY_VLLM_CHECK", "1")
    launch.compile_kernel(HOPPER, CODE, "scale", FIRST, {})
    assert "-lineinfo" in nvrtc.programs[0]["options"]


def test_other_sources_are_cupys(launch, nvrtc):
    code = CODE.replace("sm_90a", "sm_90")
    assert launch.compile_module(HOPPER, code, FIRST, {})._raw.settings["code"] == code
    assert launch.compile_kernel(HOPPER, code, "scale", FIRST, {})._raw.args[:2] == (code, "scale")
    assert not nvrtc.programs


@pytest.mark.parametrize("capability", [80, 89, 100, 120])
def test_another_gpu_is_refused(launch, nvrtc, capability):
    device = SimpleNamespace(compute_capability=capability, description="NVIDIA RTX", stream=None)
    code = '#line 1 "kernels/mine.cu"\n' + CODE
    message = rf"kernels/mine\.cu requires sm_90a .*NVIDIA RTX is sm_{capability}: launch .* stands in"
    with pytest.raises(DeviceError, match=message):
        launch.compile_module(device, code, FIRST, {})
    with pytest.raises(DeviceError, match=message):
        launch.compile_kernel(device, code, "scale", FIRST, {})
    assert not nvrtc.programs


def test_settings_that_only_cupys_compilation_has(launch, nvrtc):
    with pytest.raises(UserError, match=r'this source requires sm_90a, where name_expressions .* extern "C"'):
        launch.compile_module(HOPPER, CODE, FIRST, {"name_expressions": ["scale<float>"]})
    with pytest.raises(UserError, match="check=True"):
        launch.compile_kernel(HOPPER, CODE, "scale", FIRST, {"check": True})
    assert not nvrtc.programs
