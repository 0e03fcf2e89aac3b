// tests/device/kernels/registers.cu
// Values that a thread holds in registers while it waits: as many as a CPU preserves over a call, and more.
extern "C" __global__ void held_floats(const float* x, float* out, int rounds) {
    int t = threadIdx.x;
    float held[16];
#pragma unroll
    for (int i = 0; i < 16; i++) held[i] = x[t] * (i + 1);
    for (int r = 0; r < rounds; r++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; i++) held[i] = held[i] + held[(i + 5) % 16] * 0.25f;
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) sum += held[i] * (i - 7);
    out[t] = sum;
}

extern "C" __global__ void held_ints(const int* x, int* out, int rounds) {
    int t = threadIdx.x;
    unsigned held[16];
#pragma unroll
    for (int i = 0; i < 16; i++) held[i] = x[t] * (i + 1);
    for (int r = 0; r < rounds; r++) {
        unsigned passed = __shfl_xor_sync(0xffffffffu, held[r & 15], 1);
#pragma unroll
        for (int i = 0; i < 16; i++) held[i] = held[i] * 3 + held[(i + 5) % 16] + passed;
    }
    unsigned sum = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) sum = sum * 31 + held[i];
    out[t] = sum;
}
