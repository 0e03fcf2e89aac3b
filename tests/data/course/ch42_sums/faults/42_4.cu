// tests/data/course/ch42_sums/faults/42_4.cu: a kernel with a fault, for exercise 42.4.
extern "C" __global__ void largest(const float* x,  // (threads,)
                                   float* result) {
    __shared__ float best[256];
    best[threadIdx.x] = x[threadIdx.x];
    for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
        __syncthreads();
        if (threadIdx.x < stride) best[threadIdx.x] = fmaxf(best[threadIdx.x], best[threadIdx.x + stride]);
    }
    result[0] = best[0];
}
