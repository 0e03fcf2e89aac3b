// tests/device/zoo/lanes.cu: warp operations with lanes that are not there, each in one line.

extern "C" __global__ void lanes_in_if(const float* x, float* y, int n) {
    float v = x[threadIdx.x];
    if (threadIdx.x < 16) {
        v += __shfl_down_sync(0xffffffff, v, 8);  // FAULT lanes
    }
    y[threadIdx.x] = v;
}

extern "C" __global__ void lanes_in_loop(const float* x, float* y, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) {
        sum += __shfl_sync(0xffffffff, x[i], 0);  // FAULT lanes
    }
    y[threadIdx.x] = sum;
}

__device__ float half_warp_sum(float value) {
    for (int step = 8; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffff, value, step);  // FAULT lanes
    }
    return value;
}
extern "C" __global__ void lanes_in_device_function(const float* x, float* y, int n) {
    y[threadIdx.x] = half_warp_sum(x[threadIdx.x]);
}

template <unsigned MASK>
__device__ float from_lane(float value, int lane) {
    return __shfl_sync(MASK, value, lane);  // FAULT lanes
}
extern "C" __global__ void lanes_in_template(const float* x, float* y, int n) {
    if (threadIdx.x < 16) y[threadIdx.x] = from_lane<0xffffu>(x[threadIdx.x], 20);
}
