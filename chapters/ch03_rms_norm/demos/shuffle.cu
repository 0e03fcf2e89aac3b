// chapters/ch03_rms_norm/demos/shuffle.cu: a picture of chapter 03: what each lane holds after each shuffle.
//
// One warp; a value a lane. Each step swaps with the lane whose number differs in one bit, and adds.
extern "C" __global__ void shuffle(const float* values,  // (32,)
                                   float* held,          // (4, 32): before, after 4, after 2, after 1
                                   int lanes) {
    float value = threadIdx.x < lanes ? values[threadIdx.x] : 0.0f;
    held[threadIdx.x] = value;
    value += __shfl_xor_sync(0xffffffffu, value, 4);
    held[32 + threadIdx.x] = value;
    value += __shfl_xor_sync(0xffffffffu, value, 2);
    held[64 + threadIdx.x] = value;
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    held[96 + threadIdx.x] = value;
}
