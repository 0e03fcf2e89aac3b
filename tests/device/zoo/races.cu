// tests/device/zoo/races.cu: kernels in which two threads meet at one place, each in one line.

extern "C" __global__ void race_tree(const float* x, float* y, int n) {
    __shared__ float partial[64];
    partial[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int stride = 32; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            partial[threadIdx.x] += partial[threadIdx.x + stride];  // FAULT race
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) y[0] = partial[0];
}

extern "C" __global__ void race_before_tree(const float* x, float* y, int n) {
    __shared__ float partial[64];
    partial[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = partial[63 - threadIdx.x];  // FAULT race
}

// Right on the emulator, whose threads run one after another.
extern "C" __global__ void race_total(const float* x, float* y, int n) {
    __shared__ float total;
    if (threadIdx.x == 0) total = 0.0f;
    __syncthreads();
    total += x[threadIdx.x];  // FAULT race
    __syncthreads();
    if (threadIdx.x == 0) y[0] = total;
}

__device__ float sum_of_first_two(const float* partial) {
    return partial[0] + partial[1];  // FAULT race
}
extern "C" __global__ void race_device_function(const float* x, float* y, int n) {
    __shared__ float partial[64];
    partial[threadIdx.x] = x[threadIdx.x];
    float sum = sum_of_first_two(partial);
    __syncthreads();
    y[threadIdx.x] = sum;
}

template <class T, int N>
__device__ T rotate(T* buffer, T value) {
    buffer[threadIdx.x] = value;
    __syncthreads();
    value = buffer[(threadIdx.x + 1) % N];
    buffer[threadIdx.x] = value * T(2);  // FAULT race
    __syncthreads();
    return buffer[threadIdx.x];
}
extern "C" __global__ void race_template(const float* x, float* y, int n) {
    __shared__ float buffer[64];
    y[threadIdx.x] = rotate<float, 64>(buffer, x[threadIdx.x]);
}

// The tile is overwritten for the next step while others still read this one.
extern "C" __global__ void race_reuse(const float* x, float* y, int n) {
    __shared__ float tile[32];
    float sum = 0.0f;
    for (int first = 0; first < n; first += 32) {
        tile[threadIdx.x] = x[first + threadIdx.x];  // FAULT race
        __syncthreads();
        for (int i = 0; i < 32; i++) sum += tile[i];
    }
    y[threadIdx.x] = sum;
}

extern "C" __global__ void race_blocks(const float* x, float* y, int n) {
    if (threadIdx.x == 0) {
        y[0] += x[blockIdx.x];  // FAULT race
    }
}

extern "C" __global__ void race_neighbour_block(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + 1 < n) {
        x[i] = x[i + 1];  // FAULT race
    }
}

// Within one warp no barrier of the block is needed, but a __syncwarp is.
extern "C" __global__ void race_warp(const float* x, float* y, int n) {
    __shared__ float s[32];
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    float other = s[threadIdx.x ^ 1];
    s[threadIdx.x] = other + 1.0f;  // FAULT race
    __syncwarp();
    y[threadIdx.x] = s[threadIdx.x];
}

extern "C" __global__ void race_vector(const float* x, float* y, int n) {
    float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x];
    reinterpret_cast<float4*>(y)[threadIdx.x / 2] = v;  // FAULT race
}

extern "C" __global__ void race_bytes(const unsigned char* x, unsigned char* y, int n) {
    __shared__ unsigned char s[64];
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = s[threadIdx.x ^ 1];  // FAULT race
}

// A shuffle makes the lanes meet, and orders no memory.
extern "C" __global__ void race_shuffle(const float* x, float* y, int n) {
    __shared__ float s[32];
    s[threadIdx.x] = x[threadIdx.x];
    float first = __shfl_sync(0xffffffff, x[threadIdx.x], 0);
    y[threadIdx.x] = s[threadIdx.x ^ 1] + first;  // FAULT race
}
