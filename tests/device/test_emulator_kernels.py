"""Kernels of many kinds on the emulator, each against NumPy."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tiny_vllm.device.emulator import Emulator, RawKernel, RawModule

KERNELS = Path(__file__).parent / "kernels"
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(scope="module")
def load():
    """Compile a file of tests/device/kernels once, on two workers so that blocks do run side by side."""
    modules: dict[tuple[str, tuple[str, ...]], RawModule] = {}

    def load(file: str, *names: str) -> RawModule:
        if (file, names) not in modules:
            code = (KERNELS / file).read_text()
            modules[file, names] = Emulator().RawModule(code, name_expressions=names, workers=2)
        return modules[file, names]

    return load


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)


def poisoned(*shape: int, dtype=np.float32) -> np.ndarray:
    """Memory in which every element that a kernel leaves out is seen: NaN, or -1 for integers."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = 0xFF
    return array


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(1, keepdims=True) + eps) * weight.astype(np.float64)


@pytest.mark.parametrize("name", ["rms_norm_tree", "rms_norm_warp"])
@pytest.mark.parametrize(
    "rows, hidden, threads", [(1, 1, 32), (3, 33, 32), (7, 576, 128), (5, 1000, 256), (70, 64, 64)]
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_rms_norm(load, rng, name, rows, hidden, threads, scale):
    x, weight, out = normal(rng, rows, hidden, scale=scale), normal(rng, hidden), poisoned(rows, hidden)
    load("reduction.cu").get_function(name)((rows,), (threads,), (x, weight, out, hidden, 1e-5))
    np.testing.assert_allclose(out, rms_norm(x, weight, 1e-5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "type_name, dtype, rtol",
    [("float", np.float32, 1e-5), ("__half", np.float16, 2e-3), ("__nv_bfloat16", BFLOAT16, 1e-2)],
)
def test_rms_norm_template(load, rng, type_name, dtype, rtol):
    names = ["rms_norm_any<float, 64>", "rms_norm_any<__half, 64>", "rms_norm_any<__nv_bfloat16, 64>"]
    kernel = load("reduction.cu", *names).get_function(f"rms_norm_any<{type_name}, 64>")
    x, weight, out = normal(rng, 5, 77).astype(dtype), normal(rng, 77).astype(dtype), poisoned(5, 77, dtype=dtype)
    kernel((5,), (64,), (x, weight, out, 77, 1e-5), shared_mem=64 * 4)
    expected = rms_norm(x.astype(np.float32), weight.astype(np.float32), 1e-5)
    np.testing.assert_allclose(out.astype(np.float32), expected, rtol=rtol, atol=1e-6)
    with pytest.raises(TypeError, match=r"x .*float64"):  # the element type comes from the compiled template
        kernel((5,), (64,), (x.astype(np.float64), weight, out, 77, 1e-5), shared_mem=64 * 4)


@pytest.mark.parametrize("n", [1, 255, 256, 257, 100_003])
def test_silu_mul(load, rng, n):
    gate, up, out = normal(rng, n, scale=5.0), normal(rng, n), poisoned(n)
    load("elementwise.cu").get_function("silu_mul")((-(-n // 256),), (256,), (gate, up, out, n))
    gate = gate.astype(np.float64)
    np.testing.assert_allclose(out, gate / (1 + np.exp(-gate)) * up, rtol=1e-5, atol=1e-7)


def test_rope_in_place(load, rng):
    tokens, heads, head_dim = 7, 3, 10
    x, positions = normal(rng, tokens, heads, head_dim), rng.integers(0, 50, tokens).astype(np.int32)
    angles = np.arange(50)[:, None] / 10000.0 ** (np.arange(5) / 5)
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    first, second = x[..., :5].copy(), x[..., 5:].copy()
    count = tokens * heads * 5
    kernel = load("elementwise.cu").get_function("rope")
    kernel((-(-count // 32),), (32,), (x, positions, cosines, sines, tokens, heads, head_dim))
    c, s = cosines[positions][:, None], sines[positions][:, None]
    np.testing.assert_allclose(x[..., :5], first * c - second * s, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x[..., 5:], second * c + first * s, rtol=1e-5, atol=1e-6)


def test_embed_bfloat16(load, rng):
    table, tokens = normal(rng, 50, 77).astype(BFLOAT16), rng.integers(0, 50, 9).astype(np.int32)
    out = poisoned(9, 77)
    load("elementwise.cu").get_function("embed")((9,), (32,), (tokens, table, out, 77))
    np.testing.assert_array_equal(out, table[tokens].astype(np.float32))


@pytest.mark.parametrize("n", [1, 255, 256, 257, 4999])
def test_argmax_takes_the_first_of_equals(load, rng, n):
    x = rng.integers(-5, 5, n).astype(np.float32)
    out = poisoned(1, dtype=np.int32)
    load("elementwise.cu").get_function("argmax")((1,), (256,), (x, n, out))
    assert out[0] == x.argmax()


@pytest.mark.parametrize("length", [1, 4, 5, 37, 130])
@pytest.mark.parametrize("name", ["decode_warp", "decode_shared"])
def test_attention(load, rng, name, length):
    heads, kv_heads, head_dim = 6, 2, 64
    q, k, v = (
        normal(rng, heads, head_dim),
        normal(rng, length, kv_heads, head_dim),
        normal(rng, length, kv_heads, head_dim),
    )
    if name == "decode_warp":
        k, v = k.astype(BFLOAT16), v.astype(BFLOAT16)
    out = poisoned(heads, head_dim)
    kernel = load("attention.cu").get_function(name)
    kernel((heads,), (128,), (q, k, v, out, length, heads, kv_heads, 0.125), shared_mem=4 * length)
    for head in range(heads):
        scores = k[:, head // 3].astype(np.float64) @ q[head] * 0.125
        weights = np.exp(scores - scores.max())
        expected = weights / weights.sum() @ v[:, head // 3].astype(np.float64)
        np.testing.assert_allclose(out[head], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (16, 16, 16), (17, 33, 5), (50, 31, 70)])
def test_gemm_tiled(load, rng, m, n, k):
    a, b, out = normal(rng, m, k), normal(rng, k, n), poisoned(m, n)
    load("gemm.cu").get_function("gemm_tiled")((-(-n // 16), -(-m // 16)), (16, 16), (a, b, out, m, n, k))
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


def test_gemm_registers(load, rng):
    name = "gemm_registers<float, 32, 4>"
    a, b, out = normal(rng, 64, 24), normal(rng, 24, 96), poisoned(64, 96)
    load("gemm.cu", name).get_function(name)((3, 2), (8, 8), (a, b, out, 96, 24))
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("type_name, dtype", [("half", np.dtype(np.float16)), ("bfloat16", BFLOAT16)])
def test_every_16_bit_value_converts(load, rng, type_name, dtype):
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide = poisoned(every.size)
    load("intrinsics.cu").get_function(f"from_{type_name}")((256,), (256,), (every, wide, every.size))
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.concatenate([wide, np.nextafter(wide, np.float32(np.inf)), np.nextafter(wide, np.float32(-np.inf))])
        middle = wide + (np.roll(wide, 1) - wide) * np.float32(0.5)  # ties
        values = np.concatenate([near, middle, rng.uniform(-1e-6, 1e-6, 5000), normal(rng, 5000, scale=1e4)])
        values = values.astype(np.float32)
        expected = values.astype(dtype)
    back = poisoned(values.size, dtype=dtype)
    load("intrinsics.cu").get_function(f"to_{type_name}")(
        (-(-values.size // 256),), (256,), (values, back, values.size)
    )
    np.testing.assert_array_equal(back.astype(np.float32), expected.astype(np.float32))
    assert (np.signbit(back) == np.signbit(expected))[~np.isnan(values)].all()


def test_portable_half_conversion_is_the_same(rng):
    """Compilers without a half type in C++ take the path by bit arithmetic."""
    code = (KERNELS / "intrinsics.cu").read_text()
    module = RawModule(code, ("-DEMULATOR_PORTABLE_HALF",))
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide, back = poisoned(every.size), poisoned(every.size, dtype=np.float16)
    module.get_function("from_half")((256,), (256,), (every, wide, every.size))
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    finite = np.isfinite(wide)
    values = np.where(finite, wide, 1.0) * np.float32(1 + 2**-11)  # a tie at every step, and what lies off it
    values[::3] *= np.float32(1 + 2**-20)
    module.get_function("to_half")((256,), (256,), (values, back, values.size))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(back, values.astype(np.float16))


@pytest.mark.parametrize("type_name, dtype", [("half", np.dtype(np.float16)), ("bfloat16", BFLOAT16)])
def test_16_bit_arithmetic_rounds_once(load, rng, type_name, dtype):
    n = 97
    a, b = normal(rng, n, scale=3.0).astype(dtype), normal(rng, n).astype(dtype)
    out = poisoned(9, n, dtype=dtype)
    load("intrinsics.cu").get_function(f"{type_name}_arithmetic")((1,), (128,), (a, b, out, n))
    x, y = a.astype(np.float64), b.astype(np.float64)
    expected = [x + y, x - y, x * y, x / y, x * y + x, np.maximum(x, y), -abs(x), 2 * y, x * y]
    np.testing.assert_array_equal(out.astype(np.float32), np.array(expected).astype(dtype).astype(np.float32))


def test_dequantize_reads_16_bytes_at_once(load, rng):
    packed = rng.integers(0, 2**32, (50, 4), dtype=np.uint64).astype(np.uint32)
    scale, out = normal(rng, 50).astype(np.float16), poisoned(50, 32)
    load("intrinsics.cu").get_function("dequantize")((1,), (64,), (packed, scale, out, 50))
    nibbles = (packed[:, :, None] >> (4 * np.arange(8, dtype=np.uint32)) & 15).astype(np.int32) - 8
    factors = scale.astype(np.float32) * np.array([1, 2, 4, 8], np.float32)[np.arange(50) % 4]
    np.testing.assert_array_equal(out, nibbles.reshape(50, 32) * factors[:, None])


def test_bits(load, rng):
    n = 70
    x = rng.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32)
    x[:3] = 0, 1, 0xFFFFFFFF
    out = poisoned(8, n, dtype=np.uint32)
    load("intrinsics.cu").get_function("bits")((1,), (96,), (x, out, n))
    ints = [int(v) for v in x]
    assert out[0].tolist() == [bin(v).count("1") for v in ints]
    assert out[1].tolist() == [32 - v.bit_length() for v in ints]
    assert out[2].tolist() == [(v & -v).bit_length() for v in ints]
    assert out[3].tolist() == [int(f"{v:032b}"[::-1], 2) for v in ints]
    assert out[4].tolist() == [v * 0x9E3779B9 >> 32 for v in ints]
    assert out[5].tolist() == [(v >> 24) | (v & 255) << 8 | (v >> 8 & 255) << 16 | 0x22 << 24 for v in ints]
    factors = np.array([0xFC, 0x03, 0xFE, 0x01], np.uint8).view(np.int8).astype(int)
    dots = x.view(np.int8).reshape(n, 4).astype(int) @ factors + 7
    assert out[6].view(np.int32).tolist() == dots.tolist()
    assert (out[7] == x).all()


def test_maths(load, rng):
    n = 90
    x = normal(rng, n, scale=2.0)
    out = poisoned(6, n)
    load("intrinsics.cu").get_function("maths")((1,), (96,), (x, out, n))
    v = x.astype(np.float64)
    expected = [
        np.ones(n),
        abs(v) ** -0.5,
        v.clip(0, 1),
        np.rint(x * np.float32(10)),
        np.maximum(v, 0.25) - np.minimum(v, 0.5),
        v / 3,
    ]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_a_kernel_alone_by_raw_kernel(rng):
    code = 'extern "C" __global__ void scale(float* x, float by) { x[threadIdx.x] *= by; }'
    x = normal(rng, 100)
    expected = x * np.float32(2.5)
    RawKernel(code, "scale")((1,), (100,), (x, 2.5))
    np.testing.assert_array_equal(x, expected)
