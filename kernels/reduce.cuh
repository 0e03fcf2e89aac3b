// kernels/reduce.cuh: one number out of a whole block, in shared memory and two barriers.
//
// Every thread leaves its value in `partial`; FOLD threads fold the values FOLD apart; then each thread folds those
// FOLD results for itself. For 256 threads that is 15 + 15 steps, where a tree takes 8 steps and 8 barriers. It asks
// nothing of blockDim.x but at least FOLD, so a block may have one thread a column of an odd head. A caller passes
// another barrier before it calls again with the same `partial`.
#pragma once
#define FOLD 16

__device__ __forceinline__ float larger(float a, float b) { return b > a ? b : a; }

// partial: blockDim.x floats of shared memory. The sum of all threads' values, in every thread.
__device__ __forceinline__ float block_sum(float value, float* partial) {
    partial[threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x < FOLD) {
        for (int i = threadIdx.x + FOLD; i < blockDim.x; i += FOLD) value += partial[i];
        partial[threadIdx.x] = value;
    }
    __syncthreads();
    float sum = partial[0];
    for (int i = 1; i < FOLD; i++) sum += partial[i];
    return sum;
}

// The same for the largest; NaN is passed over.
__device__ __forceinline__ float block_max(float value, float* partial) {
    partial[threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x < FOLD) {
        for (int i = threadIdx.x + FOLD; i < blockDim.x; i += FOLD) value = larger(value, partial[i]);
        partial[threadIdx.x] = value;
    }
    __syncthreads();
    float largest = partial[0];
    for (int i = 1; i < FOLD; i++) largest = larger(largest, partial[i]);
    return largest;
}
