// tests/device/kernels/threads.cu
// How threads of a block meet: barriers, warps, atomics, and who they are.
extern "C" __global__ void who_am_i(int* out) {
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int threads = blockDim.x * blockDim.y * blockDim.z;
    out[block * threads + thread] = threadIdx.x + 100 * threadIdx.y + 10000 * threadIdx.z + 1000000 * block;
}

// The same behind a barrier: each thread reports the thread at the other end of the block.
extern "C" __global__ void mirror(int* out) {
    __shared__ int seen[1024];
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int threads = blockDim.x * blockDim.y * blockDim.z;
    seen[thread] = threadIdx.x + 100 * threadIdx.y + 10000 * threadIdx.z;
    __syncthreads();
    out[blockIdx.x * threads + thread] = seen[threads - 1 - thread];
}

// A running product over many barriers, in which the order matters.
extern "C" __global__ void relay(int* out, int rounds) {
    __shared__ int baton;
    if (threadIdx.x == 0) baton = 1;
    __syncthreads();
    for (int i = 0; i < rounds; i++) {
        if (threadIdx.x == i % blockDim.x) baton = baton * 3 % 1000003 + threadIdx.x;
        __syncthreads();
    }
    out[threadIdx.x] = baton;
}

extern "C" __global__ void votes_of_block(const int* x, int* out) {
    int mine = x[threadIdx.x];
    int count = __syncthreads_count(mine > 2), any = __syncthreads_or(mine == 7), all = __syncthreads_and(mine < 9);
    out[threadIdx.x] = count * 100 + any * 10 + all;
}

extern "C" __global__ void early_exit(int* out) {
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    if (threadIdx.x % 3 == 1) return;
    atomicAdd(&sum, (int)threadIdx.x);
    __syncthreads();
    out[threadIdx.x] = sum;
}

extern "C" __global__ void shuffles(const int* x, int* out, int width) {
    int mine = x[threadIdx.x];
    int n = blockDim.x;
    out[0 * n + threadIdx.x] = __shfl_sync(0xffffffff, mine, 5, width);
    out[1 * n + threadIdx.x] = __shfl_up_sync(0xffffffff, mine, 3, width);
    out[2 * n + threadIdx.x] = __shfl_down_sync(0xffffffff, mine, 2, width);
    out[3 * n + threadIdx.x] = __shfl_xor_sync(0xffffffff, mine, 6, width);
}

extern "C" __global__ void votes_of_warp(const int* x, unsigned* out) {
    int odd = x[threadIdx.x] & 1;
    unsigned half = threadIdx.x & 16 ? 0xffff0000u : 0x0000ffffu;  // two groups of lanes, each with its own mask
    unsigned ballot = __ballot_sync(half, odd);
    int any = __any_sync(half, odd), all = __all_sync(half, odd);
    out[threadIdx.x] = ballot;
    out[blockDim.x + threadIdx.x] = any * 2 + all;
    double wide = __shfl_down_sync(0xffffffff, x[threadIdx.x] * 0.5, 1);
    out[2 * blockDim.x + threadIdx.x] = (unsigned)(wide * 2);
}

extern "C" __global__ void histogram(const int* x, int n, int* bins, unsigned* odd, float* total, int* top) {
    __shared__ int local[16];
    if (threadIdx.x < 16) local[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&local[x[i] & 15], 1);
        atomicMax(top, x[i]);
        atomicAdd(total, 0.5f);
    }
    unsigned bits = __ballot_sync(0xffffffffu, i < n && (x[i] & 1));
    if ((threadIdx.x & 31) == 0) atomicAdd(odd, (unsigned)__popc(bits));
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

// The last block to finish adds up what all blocks left.
extern "C" __global__ void last_block_sums(const float* x, float* partial, unsigned* done, float* out) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = x[blockIdx.x];
        __threadfence();
        last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x) return;
    float sum = 0.f;
    for (int b = 0; b < gridDim.x; b++) sum += partial[b];
    *out = sum;
}

extern "C" __global__ void read_unwritten(float* out) {
    extern __shared__ float dynamic[];
    __shared__ float fixed[32];
    if (out[0] == 12345.0f) fixed[threadIdx.x] = dynamic[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = fixed[threadIdx.x];
    out[32 + threadIdx.x] = dynamic[threadIdx.x];
}
