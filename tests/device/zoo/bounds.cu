// tests/device/zoo/bounds.cu: kernels that leave an array, each in one line.

// The last block has threads to spare, and nothing holds them back.
extern "C" __global__ void bounds_no_guard(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = 2.0f * x[i];  // FAULT out of bounds
}

extern "C" __global__ void bounds_loop(const float* x, float* y, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i <= n; i += blockDim.x) {
        sum += x[i];  // FAULT out of bounds
    }
    y[threadIdx.x] = sum;
}

__device__ float left_neighbour(const float* x, int i) {
    return x[i - 1];  // FAULT out of bounds
}
extern "C" __global__ void bounds_device_function(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] = x[i] - left_neighbour(x, i);
}

template <class T, int N>
__device__ void fill_tile(T* tile, T value) {
    for (int i = threadIdx.x; i < N + 4; i += blockDim.x) {
        tile[i] = value;  // FAULT out of bounds
    }
}
extern "C" __global__ void bounds_template(float* y, int n) {
    __shared__ float tile[32];
    __shared__ float other[32];
    other[threadIdx.x] = 1.0f;
    fill_tile<float, 32>(tile, 3.0f);
    __syncthreads();
    y[threadIdx.x] = tile[31 - threadIdx.x] + other[threadIdx.x];
}

// n is no multiple of four: the last vector hangs over the end.
extern "C" __global__ void bounds_vector(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (4 * i >= n) return;
    float4 v = reinterpret_cast<const float4*>(x)[i];  // FAULT out of bounds
    y[i] = v.x + v.y + v.z + v.w;
}

extern "C" __global__ void bounds_shared_index(float* y, int n) {
    __shared__ float s[64];
    s[threadIdx.x] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x + 1] - s[threadIdx.x];  // FAULT out of bounds
}

extern "C" __global__ void bounds_local(const float* x, float* y, int n) {
    float best[4];
    for (int i = 0; i < 4; i++) best[i] = 0.0f;
    for (int i = 0; i < n; i++) {
        best[i] = x[i] * 2.0f;  // FAULT out of bounds
    }
    float sum = 0.0f;
    for (int i = 0; i < n; i++) sum += best[i & 3];
    y[threadIdx.x] = sum;
}

extern "C" __global__ void bounds_dynamic(const float* x, float* y, int n) {
    extern __shared__ float row[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        row[i] = x[i];  // FAULT out of bounds
    }
    __syncthreads();
    if (threadIdx.x == 0) y[0] = row[0];
}

// Rows q_stride apart: columns past `width` are another array's.
extern "C" __global__ void bounds_row_view(const float* q, float* y, int q_stride, int width) {
    const float* row = q + blockIdx.x * q_stride;
    float sum = 0.0f;
    for (int c = 0; c <= width; c++) {
        sum += row[c];  // FAULT out of bounds
    }
    y[blockIdx.x] = sum;
}

extern "C" __global__ void bounds_atomic(const int* x, int* counts, int n) {
    if (threadIdx.x < n) {
        atomicAdd(&counts[x[threadIdx.x]], 1);  // FAULT out of bounds
    }
}
