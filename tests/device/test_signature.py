"""What a kernel declares, and what a launch may pass."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tiny_vllm.device.signature import Parameter, Signature, check_arguments, kernel_names, parse_parameters
from tiny_vllm.errors import KernelError

BF16 = np.dtype(ml_dtypes.bfloat16)
F32, F16, I32 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.int32)

KERNEL = """
// extern "C" __global__ void rope(int old);
typedef SCALAR scalar_t;
using u32 = unsigned int;
struct Pair { int a, b; };
template <typename T> __device__ T twice(T x) { return x + x; }
extern "C" __global__ void __launch_bounds__(WARPS * 32, (2))
rope(scalar_t* __restrict__ q /* (T, Hq * D), in place */, int q_stride,
     const int *__restrict__ positions,   // (T,), int32
     float const* table, u32 seed, long long n, float scale, bool flip, void* scratch) {
  launch(q, 1);
}
__global__ void second(const float4* a, uint4 *b, __half h, double d, size_t size, Pair pair) {}
template <typename T, int N>
__global__ void third(const T* x, T value, const float x2[], unsigned long long k) {}
extern "C" __global__ void none() {}
"""


def parse(name: str, defines=()) -> list[tuple]:
    return [(p.name, p.type, p.pointer, p.const, p.dtype) for p in parse_parameters(KERNEL, name, defines)]


@pytest.mark.parametrize(
    ("defines", "dtype"),
    [((), F32), (("-DSCALAR=__nv_bfloat16", "-DHEAD_DIM=64"), BF16), ({"SCALAR": "__half"}, F16)],
)
def test_parse(defines, dtype):
    assert parse("rope", defines) == [
        ("q", "scalar_t*", True, False, dtype),
        ("q_stride", "int", False, False, I32),
        ("positions", "const int*", True, True, I32),
        ("table", "float const*", True, True, F32),
        ("seed", "u32", False, False, np.dtype(np.uint32)),
        ("n", "long long", False, False, np.dtype(np.int64)),
        ("scale", "float", False, False, F32),
        ("flip", "bool", False, False, np.dtype(bool)),
        ("scratch", "void*", True, False, None),
    ]


def test_parse_vectors_and_what_is_unknown():
    assert parse("second") == [
        ("a", "const float4*", True, True, F32),
        ("b", "uint4*", True, False, np.dtype(np.uint32)),
        ("h", "__half", False, False, F16),
        ("d", "double", False, False, np.dtype(np.float64)),
        ("size", "size_t", False, False, np.dtype(np.uint64)),
        ("pair", "Pair", False, False, None),
    ]


def test_parse_templates_by_any_of_their_names():
    expected = [
        ("x", "const T*", True, True, None),
        ("value", "T", False, False, None),
        ("x2", "const float*", True, True, F32),
        ("k", "unsigned long long", False, False, np.dtype(np.uint64)),
    ]
    assert parse("third") == expected
    assert parse("third<float, 3>") == expected
    assert parse("none") == []


def test_a_macro_names_the_type_and_an_option_overrides_it():
    code = "#ifndef T\n#define T __half\n#endif\nusing V = T;\n__global__ void k(const V* x, T* y) {}"
    assert [p.dtype for p in parse_parameters(code, "k")] == [F16, F16]
    assert [p.dtype for p in parse_parameters(code, "k", ("-DT=float",))] == [F32, F32]


def test_a_kernel_that_is_not_there_names_those_that_are():
    assert kernel_names(KERNEL) == ["rope", "second", "third", "none"]
    with pytest.raises(KernelError, match=r"no kernel rop in this source.*: rope, second, third, none"):
        parse_parameters(KERNEL, "rop")


def test_declared_ahead_is_fine_and_two_that_differ_are_not():
    assert len(parse_parameters("__global__ void k(int n);\n__global__ void k(int n) {}", "k")) == 1
    with pytest.raises(KernelError, match=r"declared twice"):
        parse_parameters("__global__ void k(int n) {}\n__global__ void k(float n) {}", "k")


def check(declaration: str, *args, **settings):
    parameters = parse_parameters(f"__global__ void kern({declaration}) {{}}", "kern")
    return Signature("kern", parameters, **settings).check(args)


def test_arrays_pass_as_they_are():
    x, y = np.zeros((3, 5), np.float32), np.zeros(7, BF16)
    assert check("const float* x, __nv_bfloat16* y", x, y)[0] is x
    assert check("const float* x, __nv_bfloat16* y", x, y)[1] is y
    for dtype in (np.int8, np.complex64):
        check("void* any", np.zeros(3, dtype))


@pytest.mark.parametrize(
    ("declaration", "value", "message"),
    [
        ("const float* x", np.zeros(3), r"^kern: argument x \(const float\* x\): got an array of float64, wanted f"),
        ("const __nv_bfloat16* x", np.zeros(3, np.float16), "got an array of float16, wanted bfloat16"),
        ("int* x", np.zeros(3, np.int64), "got an array of int64, wanted int32"),
        ("const float* x", [1.0, 2.0], "got list .*, wanted a device array of float32"),
        ("const float* x", None, "got NoneType None, wanted a device array"),
        ("const float* x", 7, "got int 7, wanted a device array"),
        ("const float* x", np.float32(7), r"got numpy\.float32 7\.0, wanted a device array"),
        ("const float* x", np.zeros((4, 6), np.float32)[:, :3], "non-contiguous view of shape .4, 3.*has no x_stride"),
        ("const float* x", np.zeros((4, 6), np.float32).T, "non-contiguous view"),
        ("void* x", np.zeros(8, np.float32)[::2], "non-contiguous view"),
    ],
)
def test_wrong_arrays(declaration, value, message):
    with pytest.raises(TypeError, match=message):
        check(declaration, value)


def test_a_numpy_array_is_no_array_of_a_gpu():
    class GpuArray:
        dtype, shape = F32, (3,)

    with pytest.raises(TypeError, match=r"a NumPy array in host memory of float32.*wanted a device array"):
        check("const float* x", np.zeros(3, np.float32), array_type=GpuArray)


def test_a_read_only_array_is_only_read():
    x = np.zeros(3, np.float32)
    x.flags.writeable = False
    assert check("const float* x", x) == (x,)
    with pytest.raises(TypeError, match=r"read-only.*declare the parameter const"):
        check("float* x", x)


def test_a_column_view_with_its_stride():
    qkv = np.zeros((4, 10), BF16)
    q, k = qkv[:, :6], qkv[:, 6:8]
    declaration = "__nv_bfloat16* q, const __nv_bfloat16* k, int q_stride, int k_stride"
    checked = check(declaration, q, k, 10, np.int32(10))
    assert checked[0] is q and checked[2] == 10 and type(checked[2]) is np.int32
    check(declaration, q.reshape(4, 3, 2), k, 10, 10)
    check(declaration, q.copy(), k, 6, 10)
    with pytest.raises(TypeError, match=r"argument k .*rows are 10 elements apart, but k_stride is 9"):
        check(declaration, q, k, 10, 9)
    with pytest.raises(TypeError, match=r"argument q .*wanted rows that are contiguous"):
        check(declaration, qkv[:, ::2], k, 10, 10)
    with pytest.raises(TypeError, match=r"wanted rows that are contiguous"):
        check(declaration, qkv.T, k, 1, 10)
    with pytest.raises(TypeError, match=r"wanted rows that are contiguous"):
        check(declaration, np.zeros(20, BF16)[::10], k, 10, 10)


@pytest.mark.parametrize(
    ("kind", "value", "exact"),
    [
        ("int", -(2**31), np.int32),
        ("int", np.int32(5), np.int32),
        ("unsigned", 2**32 - 1, np.uint32),
        ("long long", 2**40, np.int64),
        ("size_t", 2**63, np.uint64),
        ("float", 0.1, np.float32),
        ("float", 3, np.float32),
        ("float", np.float32(0.1), np.float32),
        ("float", np.float64(0.1), np.float32),
        ("float", float("-inf"), np.float32),
        ("double", 0.1, np.float64),
        ("__half", 0.5, np.float16),
        ("__nv_bfloat16", 0.5, ml_dtypes.bfloat16),
        ("bool", True, np.bool_),
    ],
)
def test_scalars_take_the_exact_type(kind, value, exact):
    (passed,) = check(f"{kind} n", value)
    assert type(passed) is exact and passed == exact(value)


def test_nan_passes():
    assert np.isnan(check("float n", float("nan"))[0])


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("int", 2**31, r"^kern: argument n \(int n\): got 2147483648, wanted -2147483648 to 2147483647"),
        ("unsigned", -1, "got -1, wanted 0 to 4294967295"),
        ("int", 1.0, r"got float 1\.0, wanted an int or numpy\.int32"),
        ("int", True, "got bool True"),
        ("int", np.int64(3), r"got numpy\.int64 3, wanted an int or numpy\.int32"),
        ("int", np.zeros(3, np.int32), "got a NumPy array in host memory of int32"),
        ("float", "1", "got str '1', wanted a float"),
        ("float", True, "got bool True"),
        ("float", np.int32(3), r"got numpy\.int32 3"),
        ("float", 1e39, "got 1e.39, wanted at most 3.40282e.38"),
        ("float", 10**400, "wanted at most"),
        ("bool", 1, "got int 1, wanted a bool"),
        ("Unknown", 1, "got int 1, wanted a NumPy scalar"),
    ],
)
def test_wrong_scalars(kind, value, message):
    with pytest.raises(TypeError, match=message):
        check(f"{kind} n", value)


def test_the_number_of_arguments():
    with pytest.raises(TypeError, match=r"^kern: got 1 arguments, wants 2: const float\* x, int n"):
        check("const float* x, int n", 1)


def test_check_arguments():
    parameters = [Parameter("n", "int", False, False, I32)]
    assert check_arguments("kern", parameters, (3,)) == (np.int32(3),)
    with pytest.raises(TypeError, match=r"kern: argument n"):
        check_arguments("kern", parameters, (3.0,))
