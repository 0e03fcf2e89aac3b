// tests/device/kernels/intrinsics.cu
// Functions of the CUDA headers, one thread an element.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

__constant__ float scales[4] = {1.f, 2.f, 4.f, 8.f};

extern "C" __global__ void to_half(const float* x, __half* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __float2half(x[i]);
}
extern "C" __global__ void from_half(const __half* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __half2float(x[i]);
}
extern "C" __global__ void to_bfloat16(const float* x, __nv_bfloat16* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __float2bfloat16(x[i]);
}
extern "C" __global__ void from_bfloat16(const __nv_bfloat16* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = float(x[i]);
}

template <typename T, typename T2>
__device__ void arithmetic(const T* a, const T* b, T* out, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    T x = a[i], y = b[i];
    out[i] = x + y;
    out[n + i] = x - y;
    out[2 * n + i] = __hmul(x, y);
    out[3 * n + i] = x / y;
    out[4 * n + i] = __hfma(x, y, x);
    out[5 * n + i] = x > y ? x : y;
    out[6 * n + i] = -__habs(x);
    T2 pair = {x, y};
    pair = __hadd2(pair, pair);
    out[7 * n + i] = pair.y;
    y *= x;
    out[8 * n + i] = y;
}
extern "C" __global__ void half_arithmetic(const __half* a, const __half* b, __half* out, int n) {
    arithmetic<__half, __half2>(a, b, out, n);
}
extern "C" __global__ void bfloat16_arithmetic(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* out,
                                               int n) {
    arithmetic<__nv_bfloat16, __nv_bfloat162>(a, b, out, n);
}

// Four-bit weights: 32 a thread, by one 16-byte load.
extern "C" __global__ void dequantize(const uint4* __restrict__ packed, const half* __restrict__ scale,
                                      float* __restrict__ out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint4 p = __ldg(&packed[i]);
    unsigned words[4] = {p.x, p.y, p.z, p.w};
    float s = __half2float(scale[i]) * scales[i & 3];
    float4* row = reinterpret_cast<float4*>(out) + 8 * (size_t)i;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        unsigned u = words[j / 2] >> (16 * (j % 2));
        row[j] = make_float4((int(u & 15) - 8) * s, (int(u >> 4 & 15) - 8) * s, (int(u >> 8 & 15) - 8) * s,
                             (int(u >> 12 & 15) - 8) * s);
    }
}

extern "C" __global__ void bits(const unsigned* x, unsigned* out, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    out[i] = __popc(x[i]);
    out[n + i] = __clz((int)x[i]);
    out[2 * n + i] = __ffs((int)x[i]);
    out[3 * n + i] = __brev(x[i]);
    out[4 * n + i] = __umulhi(x[i], 0x9e3779b9u);
    out[5 * n + i] = __byte_perm(x[i], 0x44332211u, 0x5103);
    out[6 * n + i] = (unsigned)__dp4a((int)x[i], 0x01fe03fc, 7);
    out[7 * n + i] = __float_as_uint(__uint_as_float(x[i]));
}

extern "C" __global__ void maths(const float* x, float* out, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    float v = x[i], s, c;
    __sincosf(v, &s, &c);
    out[i] = s * s + c * c;
    out[n + i] = rsqrtf(fabsf(v));
    out[2 * n + i] = __saturatef(v);
    out[3 * n + i] = (float)__float2int_rn(v * 10.0f);
    out[4 * n + i] = max(v, 0.25f) - min(v, -CUDART_INF_F + 1.0f > v ? v : 0.5f);
    out[5 * n + i] = __fdividef(v, 3.0f);
}
