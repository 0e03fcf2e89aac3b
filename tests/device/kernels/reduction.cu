// tests/device/kernels/reduction.cu
// RMSNorm, one block a row, in three ways: a tree in shared memory, warp shuffles, a template over the element type.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void rms_norm_tree(const float* __restrict__ x, const float* __restrict__ weight,
                                         float* __restrict__ out, int hidden, float eps) {
    __shared__ float partial[256];
    const float* row = x + (size_t)blockIdx.x * hidden;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) sum += row[i] * row[i];
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) partial[threadIdx.x] += partial[threadIdx.x + s];
        __syncthreads();
    }
    float scale = rsqrtf(partial[0] / hidden + eps);
    for (int i = threadIdx.x; i < hidden; i += blockDim.x)
        out[(size_t)blockIdx.x * hidden + i] = row[i] * scale * weight[i];
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

extern "C" __global__ void __launch_bounds__(256)
    rms_norm_warp(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out, int hidden,
                  float eps) {
    __shared__ float partial[32];
    const float* row = x + (size_t)blockIdx.x * hidden;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) sum += row[i] * row[i];
    sum = warp_sum(sum);
    int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = warp_sum(lane < blockDim.x / warpSize ? partial[lane] : 0.0f);
        if (lane == 0) partial[0] = sum;
    }
    __syncthreads();
    float scale = rsqrtf(partial[0] / hidden + eps);
    for (int i = threadIdx.x; i < hidden; i += blockDim.x)
        out[(size_t)blockIdx.x * hidden + i] = row[i] * scale * weight[i];
}

template <typename T, int THREADS>
__global__ void rms_norm_any(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ out, int hidden,
                             float eps) {
    extern __shared__ float partial[];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < hidden; i += THREADS) {
        float value = float(x[(size_t)blockIdx.x * hidden + i]);
        sum += value * value;
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
#pragma unroll
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) partial[threadIdx.x] += partial[threadIdx.x + s];
        __syncthreads();
    }
    float scale = rsqrtf(partial[0] / hidden + eps);
    for (int i = threadIdx.x; i < hidden; i += THREADS) {
        size_t at = (size_t)blockIdx.x * hidden + i;
        out[at] = T(float(x[at]) * scale * float(weight[i]));
    }
}
