// tests/device/zoo/ends.cu: kernels that never end, and integers divided by zero, each in one line.

extern "C" __global__ void endless_wait(int* flag, int* y, int n) {
    volatile int* seen = flag;
    while (*seen != n) {  // FAULT endless loop
    }
    y[threadIdx.x] = *seen;
}

extern "C" __global__ void endless_halving(const int* x, int* y, int n) {
    int stride = n, turns = 0;
    while (stride > 0) stride = (stride + 1) / 2, turns++;  // FAULT endless loop
    y[threadIdx.x] = turns;
}

extern "C" __global__ void division_by_zero(const int* x, int* y, int n) {
    y[threadIdx.x] = x[threadIdx.x] / n;  // FAULT division by zero
}

template <class T>
__device__ T remainder_of(T a, T b) {
    return a % b;  // FAULT division by zero
}
extern "C" __global__ void division_in_template(const int* x, int* y, int n) {
    for (int i = 3; i >= 0; i--) y[threadIdx.x] = remainder_of(x[threadIdx.x], i - n);
}
