"""Kernels with odd but legal declarations, and launches with odd arguments: they run, or one sentence says why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiny_vllm.device.emulator import Emulator, RawKernel
from tiny_vllm.device.signature import parse_parameters
from tiny_vllm.errors import KernelError, LaunchError

C = 'extern "C" __global__ '
STRUCT = "struct P { int a; float b; double c; }; "
LAYOUT = [("a", np.int32), ("b", np.float32), ("c", np.float64)]


def run(body: str, *rest: object, parameters: str = "", code: str = "", **launch: Any) -> list[float]:
    """What a kernel of that body leaves in o[0..3], which start at -1."""
    out = np.full(4, -1, np.float32)
    kernel = RawKernel(f"{code}{C}void k(float* o{parameters}) {{ {body} }}", "k", timeout=20)
    kernel((1,), (1,), (out, *rest), **launch)
    return out.tolist()


def dtypes(parameters: str, before: str = "") -> list[str]:
    found = parse_parameters(f"{before}\n{C}void k({parameters}) {{}}", "k")
    return [("*" if each.pointer else "") + str(each.dtype) for each in found]


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ("float* o, float s = (1.f < 2.f) ? 3.f : 4.f, int n = f(2, 3)", ["*float32", "float32", "int32"]),
        ("float*, int, const float *, unsigned int", ["*float32", "int32", "*float32", "uint32"]),
        ("float** o, float* const* p, float* q[3]", ["*uint64", "*uint64", "*uint64"]),  # arrays of addresses
        ("half2* a, half2 b, float4 c, float4* d", ["*float16", "None", "None", "*float32"]),
        ("long int a, unsigned long int b, short int c", ["int64", "uint64", "int16"]),
    ],
)
def test_odd_parameters(parameters, wanted):
    assert dtypes(parameters) == wanted


@pytest.mark.parametrize(
    "before",
    [
        C + "void k(float* out, int);",  # declared ahead
        """__device__ char q = '"'; /* """ + C + 'void k(int a); " */',
        "// carried on \\\n" + C + "void k(int a);",
    ],
)
def test_what_is_no_second_declaration(before):
    assert dtypes("float* o, int n", before) == ["*float32", "int32"]


def test_a_typedef_of_a_pointer_and_a_bound_on_registers():
    assert dtypes("fp o, fp* p", "typedef float *fp;") == ["*float32", "*uint64"]
    assert [p.name for p in parse_parameters('extern "C" __global__ void __maxnreg__(64) k(int a) {}', "k")] == ["a"]
    assert run("o[0] = 1;", code="#define INLINE\n" + C + "void __maxnreg__(64) other(int a) {}\n")[0] == 1


@pytest.mark.parametrize("parameter", ["ARGS", "float (*f)(float)"])
def test_a_parameter_that_the_text_does_not_show(parameter):
    with pytest.raises(KernelError, match="no type with a name; write both out"):
        dtypes(parameter, "#define ARGS float* o, int n")


def test_a_pointer_to_pointers_reads_addresses():
    target = np.zeros(2, np.float32)
    addresses = np.array([target.ctypes.data], np.uint64)
    run("x[0][1] = 5;", addresses, parameters=", float** x")
    assert target.tolist() == [0, 5]


def test_a_struct_of_its_size_only():
    value = np.array((1, 2.5, 3.5), LAYOUT)
    body = "o[0] = p.a; o[1] = p.b; o[2] = p.c;"
    assert run(body, value, parameters=", P p", code=STRUCT)[:3] == [1, 2.5, 3.5]
    for wrong in (np.int32(1), np.zeros(100, np.uint8)):
        with pytest.raises(TypeError, match=f"argument 2: got {wrong.nbytes} bytes, wanted .* the struct's 16"):
            run(body, wrong, parameters=", P p", code=STRUCT)


@pytest.mark.parametrize(
    ("declaration", "first"),
    [
        ("__shared__ extern float s[];", "s[0]"),
        ("extern __shared__ float s[][4];", "s[0][0]"),
        ("static __shared__ float s[4];", "s[0]"),
        ("extern __shared__ __align__(16) float s[];", "s[0]"),
    ],
)
def test_shared_memory_in_every_spelling(declaration, first):
    assert run(f"{declaration} {first} = 2; o[0] = {first};", shared_mem=64)[0] == 2


def test_a_grid_may_be_a_list_as_on_a_gpu():
    out = np.zeros(6, np.int32)
    kernel = RawKernel(C + "void k(int* o) { o[blockIdx.x * 3 + threadIdx.x] = 1; }", "k")
    kernel([2], [3], (out,))
    assert out.all()
    with pytest.raises(TypeError, match=r"k: grid is \[1\.5\]; its sizes must be whole numbers"):
        kernel([1.5], [3], (out,))
    with pytest.raises(TypeError, match=r"k: shared_mem is 1\.5; give a whole number"):
        kernel((1,), (3,), (out,), shared_mem=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"timeout": "5"}, {"workers": 1.5}, {"workers": "2"}, {"timeout": None}])
def test_settings_of_another_type(settings):
    [name] = settings
    with pytest.raises(KernelError, match=f"{name} is .*; give "):
        RawKernel(C + "void k() {}", "k", **settings)


def test_a_graph_is_not_launched_into_a_capture():
    """It would run at once, in the middle of what is only recorded."""
    device = Emulator()
    out = np.zeros(1, np.int32)
    kernel = device.RawKernel(C + "void k(int* o) { o[0]++; }", "k")
    with device.capture() as graph:
        kernel((1,), (1,), (out,))
    refused = r"graph\.launch: operation not permitted when stream is capturing"
    with pytest.raises(LaunchError, match=refused), device.capture():
        graph.launch()
    assert out[0] == 0
    graph.launch()
    assert out[0] == 1


def test_two_reader_files_that_cannot_stand_side_by_side():
    code = '#line 1 "x.cu"\n#line 1 "x.cu/y"\n' + C + "void k(int* o) { o[0] = 1; }"
    out = np.zeros(1, np.int32)
    RawKernel(code, "k")((1,), (1,), (out,))
    assert out[0] == 1


def test_an_isolated_kernel_ended_by_a_signal_without_a_name():
    code = 'extern "C" int kill(int, int); extern "C" int getpid();' + C + "void k(int* o) { kill(getpid(), 40); }"
    with pytest.raises(KernelError, match="ended by signal 40"):
        RawKernel(code, "k", isolated=True)((1,), (1,), (np.zeros(1, np.int32),))
