// tests/device/kernels/faults.cu
// Kernels that go wrong while they run.
extern "C" __global__ void spin(const int* flag, int* out) {
    while (*(volatile const int*)flag == 0) {}
    out[threadIdx.x] = 1;
}
extern "C" __global__ void spin_behind_barrier(const int* flag, int* out) {
    __shared__ int copy[64];
    copy[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 33)
        while (*(volatile const int*)flag == 0) {}
    __syncthreads();
    out[threadIdx.x] = copy[63 - threadIdx.x];
}
extern "C" __global__ void far_write(int* out, long long offset) { out[offset + threadIdx.x] = 7; }
extern "C" __global__ void far_write_on_fiber(int* out, long long offset) {
    __syncthreads();
    out[threadIdx.x == 40 ? offset : threadIdx.x] = 7;
}
extern "C" __global__ void divide(int* out, int divisor) { out[threadIdx.x] = 12 / divisor; }
extern "C" __global__ void trap(int* out, int when) {
    __syncthreads();
    if (threadIdx.x == when) __trap();
    out[threadIdx.x] = 3;
}
extern "C" __global__ void check_sign(const int* x, int* out) {
    assert(x[threadIdx.x] >= 0);
    out[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void missing_lanes(int* out) {
    int v = threadIdx.x;
    if (threadIdx.x < 16) v = __shfl_sync(0xffffffff, v, 0);
    if (threadIdx.x >= 16) __syncthreads();
    out[threadIdx.x] = v;
}
extern "C" __global__ void different_masks(int* out) {
    out[threadIdx.x] = __shfl_sync(threadIdx.x == 0 ? 0x3 : 0x7, (int)threadIdx.x, 0);
}
// Ends its own process, as a write into the C library's data may.
extern "C" int kill(int, int);
extern "C" int getpid();
extern "C" __global__ void die(int* out, int signal_number) {
    if (signal_number) kill(getpid(), signal_number);
    out[threadIdx.x] = 5;
}
extern "C" __global__ void one_past_the_end(const float* x, float* out, int n) {
    int i = threadIdx.x;
    if (i < n) out[i] = x[i + 1];
}
