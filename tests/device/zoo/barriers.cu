// tests/device/zoo/barriers.cu: barriers that some threads of a block do not reach, each in one line.

extern "C" __global__ void barrier_after_return(const float* x, float* y, int n) {
    __shared__ float s[64];
    if (threadIdx.x >= n) return;
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();  // FAULT barrier
    y[threadIdx.x] = s[n - 1 - threadIdx.x];
}

extern "C" __global__ void barrier_in_if(const float* x, float* y, int n) {
    __shared__ float partial[64];
    partial[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int stride = 32; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            partial[threadIdx.x] += partial[threadIdx.x + stride];
            __syncthreads();
        }
    }
    __syncthreads();  // FAULT barrier
    if (threadIdx.x == 0) y[0] = partial[0];
}

__device__ void publish(float* s, float value) {
    s[threadIdx.x] = value;
    __syncthreads();  // FAULT barrier
}
extern "C" __global__ void barrier_in_device_function(const float* x, float* y, int n) {
    __shared__ float s[64];
    if (threadIdx.x < 32) {
        publish(s, x[threadIdx.x]);
        y[threadIdx.x] = s[31 - threadIdx.x];
    }
}

template <int STEPS>
__device__ void walk(float* s) {
    for (int i = 0; i < STEPS + threadIdx.x / 32; i++) {
        __syncthreads();  // FAULT barrier
        s[threadIdx.x] += 1.0f;
    }
}
extern "C" __global__ void barrier_in_template(const float* x, float* y, int n) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    walk<2>(s);
    y[threadIdx.x] = s[threadIdx.x];
}
