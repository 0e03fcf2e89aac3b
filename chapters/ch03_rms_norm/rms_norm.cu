// chapters/ch03_rms_norm/rms_norm.cu: the worked solution of chapter 03. The engine runs kernels/rms_norm.cu.
//
// out[row, c] = x[row, c] / sqrt(mean(x[row, :]^2) + eps) * weight[c], for each row of x. Three rungs of one kernel.
// Floor: each row is read once and written once; all three read it twice, the second time mostly from cache.
// rsqrtf(z) is 1 / sqrt(z).
#include "dtype.cuh"

// The first rung. Grid ceil(num_rows / blockDim.x), any block: one thread owns a whole row.
extern "C" __global__ void rms_norm_one_thread(const scalar_t* x,       // (num_rows, hidden)
                                               const scalar_t* weight,  // (hidden,)
                                               scalar_t* out,           // (num_rows, hidden)
                                               int num_rows, int hidden, float eps) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= num_rows) return;
    x += (size_t)row * hidden;
    out += (size_t)row * hidden;
    float sum = 0.0f;
    for (int c = 0; c < hidden; c++) sum += float(x[c]) * float(x[c]);
    float scale = rsqrtf(sum / hidden + eps);
    for (int c = 0; c < hidden; c++) out[c] = scalar_t(float(x[c]) * scale * float(weight[c]));
}

// The second rung. Grid (num_rows), block a power of two: block b owns row b, its thread t owns the columns
// t, t + blockDim.x, t + 2 * blockDim.x ... Each thread adds up its own squares; a tree in shared memory adds the sums.
// Shared memory is a small memory that the threads of one block have in common. __syncthreads() is a barrier: a thread
// waits there until all threads of its block have come.
extern "C" __global__ void rms_norm_tree(const scalar_t* x,       // (num_rows, hidden)
                                         const scalar_t* weight,  // (hidden,)
                                         scalar_t* out,           // (num_rows, hidden)
                                         int hidden, float eps) {
    __shared__ float partial[1024];  // one sum a thread; no block has more threads
    x += (size_t)blockIdx.x * hidden;
    out += (size_t)blockIdx.x * hidden;

    float sum = 0.0f;
    // EXERCISE-BEGIN 3.2 (about 4 lines): each thread adds up the squares of its own columns, in float
    for (int c = threadIdx.x; c < hidden; c += blockDim.x) {
        float value = float(x[c]);
        sum += value * value;
    }
    // EXERCISE-END 3.2
    partial[threadIdx.x] = sum;
    __syncthreads();

    // EXERCISE-BEGIN 3.3 (about 5 lines): halve the number of sums until partial[0] holds the sum of them all
    for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
        if (threadIdx.x < stride) partial[threadIdx.x] += partial[threadIdx.x + stride];
        __syncthreads();  // outside the if: every thread of the block must pass it
    }
    // EXERCISE-END 3.3

    float scale = rsqrtf(partial[0] / hidden + eps);
    for (int c = threadIdx.x; c < hidden; c += blockDim.x) {
        out[c] = scalar_t(float(x[c]) * scale * float(weight[c]));
    }
}

// A warp is 32 threads of a block that run together, its lanes; a shuffle reads another lane's register.
// The sum of `value` over the 32 lanes of a warp, in every lane. No memory, no barrier.
__device__ float warp_sum(float value) {
    for (int stride = 16; stride > 0; stride >>= 1) value += __shfl_xor_sync(0xffffffffu, value, stride);
    return value;
}

// The third rung. As rms_norm_tree, with block any multiple of 32: a warp adds its 32 sums by shuffles, then the first
// warp adds the warps' sums. One barrier a stage, two in all.
extern "C" __global__ void rms_norm_warp(const scalar_t* x,       // (num_rows, hidden)
                                         const scalar_t* weight,  // (hidden,)
                                         scalar_t* out,           // (num_rows, hidden)
                                         int hidden, float eps) {
    __shared__ float partial[32];  // one sum a warp; no block has more warps
    x += (size_t)blockIdx.x * hidden;
    out += (size_t)blockIdx.x * hidden;

    float sum = 0.0f;
    for (int c = threadIdx.x; c < hidden; c += blockDim.x) {
        float value = float(x[c]);
        sum += value * value;
    }
    sum = warp_sum(sum);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;

    // EXERCISE-BEGIN 3.5 (about 8 lines): add the sums of all warps into partial[0], with at most two barriers
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = warp_sum(lane < num_warps ? partial[lane] : 0.0f);
        if (lane == 0) partial[0] = sum;
    }
    __syncthreads();
    // EXERCISE-END 3.5

    float scale = rsqrtf(partial[0] / hidden + eps);
    for (int c = threadIdx.x; c < hidden; c += blockDim.x) {
        out[c] = scalar_t(float(x[c]) * scale * float(weight[c]));
    }
}
