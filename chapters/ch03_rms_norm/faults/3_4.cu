// chapters/ch03_rms_norm/faults/3_4.cu: exercise 3.4 of chapter 03, a kernel with one fault.
//
// Three rounds in which each element becomes the mean of itself and its right neighbour; the last one's is the first.
// One block, a thread an element.
extern "C" __global__ void smooth(const float* a,  // (blockDim.x,)
                                  float* b) {      // (blockDim.x,)
    __shared__ float held[256];
    int right = (threadIdx.x + 1) % blockDim.x;
    held[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    for (int round = 0; round < 3; round++) {
        float mean = (held[threadIdx.x] + held[right]) / 2;
        held[threadIdx.x] = mean;
        __syncthreads();
    }
    b[threadIdx.x] = held[threadIdx.x];
}
