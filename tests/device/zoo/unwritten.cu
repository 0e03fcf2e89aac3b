// tests/device/zoo/unwritten.cu: kernels that read what nothing wrote, each in one line.

extern "C" __global__ void unwritten_tail(const float* x, float* y, int n) {
    __shared__ float partial[64];
    if (threadIdx.x < n) partial[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = partial[63 - threadIdx.x];  // FAULT uninitialised
}

// The result is added to whatever the array held.
extern "C" __global__ void unwritten_sum(const float* x, float* y, int n) {
    for (int i = 0; i < n; i++) {
        y[threadIdx.x] += x[i];  // FAULT uninitialised
    }
}

__device__ void raise(int* counter) { atomicAdd(counter, 1); }
__device__ int value_of(const int* counter) {
    return *counter;  // FAULT uninitialised
}
extern "C" __global__ void unwritten_in_device_function(int* y, int n) {
    __shared__ int counters[2];
    if (threadIdx.x == 0) counters[0] = 0;
    __syncthreads();
    raise(&counters[0]);
    __syncthreads();
    y[threadIdx.x] = value_of(&counters[1]);
}

template <int WIDTH>
__device__ float sum_row(const float* row) {
    float sum = 0.0f;
    for (int i = 0; i < WIDTH; i++) {
        sum += row[i];  // FAULT uninitialised
    }
    return sum;
}
extern "C" __global__ void unwritten_in_template(const float* x, float* y, int n) {
    extern __shared__ float rows[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) rows[i] = x[i];
    __syncthreads();
    y[threadIdx.x] = sum_row<8>(rows + 8 * threadIdx.x);
}

extern "C" __global__ void unwritten_vector(const float* x, float* y, int n) {
    __shared__ __align__(16) float s[64];
    if (threadIdx.x < 63) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 16) {
        float4 v = reinterpret_cast<const float4*>(s)[threadIdx.x];  // FAULT uninitialised
        y[threadIdx.x] = v.x + v.y + v.z + v.w;
    }
}
