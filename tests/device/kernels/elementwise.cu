// tests/device/kernels/elementwise.cu
// Kernels whose threads do not talk to each other, and one (argmax) whose do.
#include <cuda_bf16.h>
#include <math_constants.h>

extern "C" __global__ void silu_mul(const float* gate, const float* up, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = gate[i] / (1.0f + __expf(-gate[i])) * up[i];
}

// One thread a (token, head, pair), in place.
extern "C" __global__ void rope(float* x, const int* positions, const float* cosines, const float* sines, int tokens,
                                int heads, int head_dim) {
    int half_dim = head_dim / 2, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= tokens * heads * half_dim) return;
    int pair = i % half_dim, head = i / half_dim % heads, token = i / (half_dim * heads);
    float c = cosines[positions[token] * half_dim + pair], s = sines[positions[token] * half_dim + pair];
    float* row = x + ((size_t)token * heads + head) * head_dim;
    float a = row[pair], b = row[pair + half_dim];
    row[pair] = a * c - b * s;
    row[pair + half_dim] = b * c + a * s;
}

extern "C" __global__ void embed(const int* tokens, const __nv_bfloat16* table, float* out, int hidden) {
    const __nv_bfloat16* row = table + (size_t)tokens[blockIdx.x] * hidden;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x)
        out[(size_t)blockIdx.x * hidden + i] = __bfloat162float(row[i]);
}

extern "C" __global__ void argmax(const float* x, int n, int* out) {
    __shared__ float best[256];
    __shared__ int where[256];
    float value = -CUDART_INF_F;
    int index = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        if (x[i] > value) value = x[i], index = i;
    best[threadIdx.x] = value, where[threadIdx.x] = index;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        int other = threadIdx.x + s;
        if (threadIdx.x < s && (best[other] > best[threadIdx.x] ||
                                (best[other] == best[threadIdx.x] && where[other] < where[threadIdx.x])))
            best[threadIdx.x] = best[other], where[threadIdx.x] = where[other];
        __syncthreads();
    }
    if (threadIdx.x == 0) *out = where[0];
}
