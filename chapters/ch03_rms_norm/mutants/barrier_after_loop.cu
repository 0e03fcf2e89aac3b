// chapters/ch03_rms_norm/mutants/barrier_after_loop.cu: wrong because: one barrier after the loop is enough |
// caught by: clean | looks right on: every value in reverse order on the emulator, every value on an H200 | exercise: 3.3
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
    int index = threadIdx.x + blockIdx.x * blockDim.x;
    if (index >= num_rows) return;
    const scalar_t* row = x + (size_t)index * hidden;
    scalar_t* y = out + (size_t)index * hidden;
    float sum = 0.0f;
    for (int c = 0; c < hidden; c++) sum += float(row[c]) * float(row[c]);
    float scale = rsqrtf(sum / hidden + eps);
    for (int c = 0; c < hidden; c++) y[c] = scalar_t(float(row[c]) * scale * float(weight[c]));
}

// What one thread contributes where a block shares a row: thread t owns the columns t, t + T, t + 2T ... of T threads.
__device__ float my_squares(const scalar_t* row,  // (hidden,)
                            int hidden) {
    float sum = 0.0f;
    // EXERCISE-BEGIN 3.2 (about 4 lines): add up the squares of this thread's own columns, in float
    for (int column = threadIdx.x; column < hidden; column += blockDim.x) {
        float value = float(row[column]);
        sum += value * value;
    }
    // EXERCISE-END 3.2
    return sum;
}

// Each thread's contribution, to look at. Grid (num_rows), any block: block b takes row b.
extern "C" __global__ void squares_by_thread(const scalar_t* x,  // (num_rows, hidden)
                                             float* sums,        // (num_rows, blockDim.x)
                                             int hidden) {
    sums[threadIdx.x + blockIdx.x * blockDim.x] = my_squares(x + (size_t)blockIdx.x * hidden, hidden);
}

// The second rung. Grid (num_rows), block a power of two: block b takes row b, a tree in shared memory adds the sums.
// Shared memory is a small memory that the threads of one block have in common. __syncthreads() is a barrier: a thread
// waits there until all threads of its block have come.
extern "C" __global__ void rms_norm_tree(const scalar_t* x,       // (num_rows, hidden)
                                         const scalar_t* weight,  // (hidden,)
                                         scalar_t* out,           // (num_rows, hidden)
                                         int hidden, float eps) {
    __shared__ float partial[1024];  // one sum a thread; no block has more threads
    const scalar_t* row = x + (size_t)blockIdx.x * hidden;
    scalar_t* y = out + (size_t)blockIdx.x * hidden;
    partial[threadIdx.x] = my_squares(row, hidden);
    __syncthreads();

    // EXERCISE-BEGIN 3.3 (about 8 lines): halve the number of sums until partial[0] holds them all; then fill y
    for (int distance = blockDim.x / 2; distance > 0; distance /= 2) {
        if (threadIdx.x < distance) partial[threadIdx.x] += partial[threadIdx.x + distance];
    }
    __syncthreads();
    float scale = rsqrtf(partial[0] / hidden + eps);
    for (int column = threadIdx.x; column < hidden; column += blockDim.x) {
        y[column] = scalar_t(float(row[column]) * scale * float(weight[column]));
    }
    // EXERCISE-END 3.3
}

// A warp is 32 threads of a block that run together, its lanes. A shuffle reads a register of the lane whose number
// differs in one bit. After five of them every lane holds the sum over the warp: no memory, no barrier.
__device__ float warp_sum(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 16);
    value += __shfl_xor_sync(0xffffffffu, value, 8);
    value += __shfl_xor_sync(0xffffffffu, value, 4);
    value += __shfl_xor_sync(0xffffffffu, value, 2);
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value;
}

// The third rung. As rms_norm_tree, with block any multiple of 32: each warp adds its 32 sums by shuffles, then the
// first warp adds the warps' sums. One barrier a stage, two in all.
extern "C" __global__ void rms_norm_warp(const scalar_t* x,       // (num_rows, hidden)
                                         const scalar_t* weight,  // (hidden,)
                                         scalar_t* out,           // (num_rows, hidden)
                                         int hidden, float eps) {
    __shared__ float partial[32];  // one sum a warp; no block has more warps
    const scalar_t* row = x + (size_t)blockIdx.x * hidden;
    scalar_t* y = out + (size_t)blockIdx.x * hidden;
    float sum = warp_sum(my_squares(row, hidden));
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;

    // EXERCISE-BEGIN 3.5 (about 11 lines): add the warps' sums with at most two barriers; then fill y as in 3.3
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = warp_sum(lane < num_warps ? partial[lane] : 0.0f);
        if (lane == 0) partial[0] = sum;
    }
    __syncthreads();
    float scale = rsqrtf(partial[0] / hidden + eps);
    for (int column = threadIdx.x; column < hidden; column += blockDim.x) {
        y[column] = scalar_t(float(row[column]) * scale * float(weight[column]));
    }
    // EXERCISE-END 3.5
}
