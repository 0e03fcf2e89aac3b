// kernels/rms_norm.cu: what the engine runs. The lesson's is chapters/ch03_rms_norm/rms_norm.cu.
//
// out[row, :] = x[row, :] / sqrt(mean(x[row, :]^2) + eps) * weight      (Zhang and Sennrich, 2019)
// One block a row; thread t owns columns t, t + blockDim.x, ... and adds up their squares, block_sum makes one number
// of them. The row is read twice, the second time out of cache.
// Bytes: each row read and written once, the weight once; for T rows of H elements 2 * T * H * sizeof(scalar_t).
#include "dtype.cuh"
#include "reduce.cuh"

extern "C" __global__ void rms_norm(const scalar_t* x,       // (T, hidden)
                                    const scalar_t* weight,  // (hidden,)
                                    scalar_t* out,           // (T, hidden); may be x
                                    int hidden, float eps) {
    __shared__ float partial[1024];
    const size_t row = (size_t)blockIdx.x * hidden;

    float squares = 0.0f;
    for (int c = threadIdx.x; c < hidden; c += blockDim.x) {
        float v = float(x[row + c]);
        squares += v * v;
    }
    const float scale = rsqrtf(block_sum(squares, partial) / hidden + eps);

    for (int c = threadIdx.x; c < hidden; c += blockDim.x) {
        out[row + c] = scalar_t(float(x[row + c]) * scale * float(weight[c]));
    }
}
