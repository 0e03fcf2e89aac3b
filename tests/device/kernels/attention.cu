// tests/device/kernels/attention.cu
// Attention of one query a head over T keys [T][kv_heads][D]: with a shuffle a key, and with scores in shared memory.
#include <cuda_bf16.h>
#include <math_constants.h>
#define D 64
#define WARPS 4

extern "C" __global__ void decode_warp(const float* __restrict__ q, const __nv_bfloat16* __restrict__ k,
                                       const __nv_bfloat16* __restrict__ v, float* __restrict__ out, int T, int heads,
                                       int kv_heads, float scale) {
    __shared__ float max_of[WARPS], sum_of[WARPS], out_of[WARPS][D];
    int head = blockIdx.x, kv_head = head / (heads / kv_heads);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float q0 = q[head * D + 2 * lane] * scale, q1 = q[head * D + 2 * lane + 1] * scale;
    float m = -CUDART_INF_F, l = 0.f, o0 = 0.f, o1 = 0.f;
    for (int t = warp; t < T; t += WARPS) {
        size_t row = ((size_t)t * kv_heads + kv_head) * D;
        float2 key = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(k + row)[lane]);
        float score = q0 * key.x + q1 * key.y;
        for (int offset = 16; offset > 0; offset >>= 1) score += __shfl_xor_sync(0xffffffff, score, offset);
        float m_new = fmaxf(m, score), old = __expf(m - m_new), p = __expf(score - m_new);
        float2 value = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(v + row)[lane]);
        l = l * old + p;
        o0 = o0 * old + p * value.x;
        o1 = o1 * old + p * value.y;
        m = m_new;
    }
    if (lane == 0) max_of[warp] = m, sum_of[warp] = l;
    out_of[warp][2 * lane] = o0;
    out_of[warp][2 * lane + 1] = o1;
    __syncthreads();
    if (threadIdx.x >= D) return;
    float top = -CUDART_INF_F, sum = 0.f, o = 0.f;
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, max_of[w]);
    for (int w = 0; w < WARPS; w++) {
        float factor = max_of[w] == -CUDART_INF_F ? 0.f : __expf(max_of[w] - top);
        sum += sum_of[w] * factor;
        o += out_of[w][threadIdx.x] * factor;
    }
    out[head * D + threadIdx.x] = o / sum;
}

__device__ float block_reduce(float* scratch, float value, bool want_max) {
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) {
            float a = scratch[threadIdx.x], b = scratch[threadIdx.x + s];
            scratch[threadIdx.x] = want_max ? fmaxf(a, b) : a + b;
        }
        __syncthreads();
    }
    float result = scratch[0];
    __syncthreads();
    return result;
}

extern "C" __global__ void decode_shared(const float* q, const float* k, const float* v, float* out, int T, int heads,
                                         int kv_heads, float scale) {
    extern __shared__ float scores[];
    __shared__ float scratch[128];
    int head = blockIdx.x, kv_head = head / (heads / kv_heads);
    float top = -CUDART_INF_F, sum = 0.f;
    for (int t = threadIdx.x; t < T; t += blockDim.x) {
        float score = 0.f;
        for (int d = 0; d < D; d++) score += q[head * D + d] * k[((size_t)t * kv_heads + kv_head) * D + d];
        scores[t] = score * scale;
        top = fmaxf(top, scores[t]);
    }
    top = block_reduce(scratch, top, true);
    for (int t = threadIdx.x; t < T; t += blockDim.x) sum += scores[t] = expf(scores[t] - top);
    sum = block_reduce(scratch, sum, false);
    for (int d = threadIdx.x; d < D; d += blockDim.x) {
        float o = 0.f;
        for (int t = 0; t < T; t++) o += scores[t] * v[((size_t)t * kv_heads + kv_head) * D + d];
        out[head * D + d] = o / sum;
    }
}
