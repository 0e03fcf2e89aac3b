// tests/device/zoo/addresses.cu: addresses that no instruction takes, each in one line.

// Rows of an odd length: the second begins at no multiple of 16 bytes.
extern "C" __global__ void misaligned_rows(const float* x, float* y, int n) {
    const float* row = x + threadIdx.x * n;
    float4 v = *reinterpret_cast<const float4*>(row);  // FAULT misaligned
    y[threadIdx.x] = v.x + v.w;
}

__device__ void store_pair(float* to, float a, float b) {
    *reinterpret_cast<float2*>(to) = make_float2(a, b);  // FAULT misaligned
}
extern "C" __global__ void misaligned_in_device_function(const float* x, float* y, int n) {
    if (threadIdx.x < n) store_pair(y + 2 * threadIdx.x + 1, x[threadIdx.x], 0.0f);
}

template <class V>
__device__ V load_at(const float* s) {
    return *reinterpret_cast<const V*>(s);  // FAULT misaligned
}
extern "C" __global__ void misaligned_in_template(const float* x, float* y, int n) {
    __shared__ __align__(16) float s[72];
    for (int i = threadIdx.x; i < 72; i += blockDim.x) s[i] = x[i];
    __syncthreads();
    float4 v = load_at<float4>(s + 4 * threadIdx.x + 2);
    y[threadIdx.x] = v.x + v.y + v.z + v.w;
}

struct Node {
    float value;
    const Node* next;
};
extern "C" __global__ void null_pointer(float* y, int n) {
    const Node last = {1.0f, nullptr};
    const Node* node = &last;
    for (int i = 0; i < n; i++) node = node->next;
    y[threadIdx.x] = node->value;  // FAULT null pointer
}

__device__ float first_of(const float* x) {
    return x[0];  // FAULT null pointer
}
extern "C" __global__ void null_in_device_function(const float* x, float* y, int n) {
    const float* row = threadIdx.x < n ? x + threadIdx.x : nullptr;
    y[threadIdx.x] = first_of(row);
}

// Far away, where no array is.
extern "C" __global__ void wild_pointer(const float* x, float* y, int n) {
    y[threadIdx.x] = x[(size_t)n * n * n];  // FAULT out of bounds
}
