// chapters/ch03_rms_norm/faults/shared_sum.cu: a trap that the lesson of chapter 03 runs. It is wrong.
//
// The sum of one value a thread, one block: every thread adds its own to one shared number.
extern "C" __global__ void shared_sum(const float* values,  // (blockDim.x,)
                                      float* result) {      // (1,)
    __shared__ float total;
    if (threadIdx.x == 0) total = 0.0f;
    __syncthreads();
    total += values[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) result[0] = total;
}
