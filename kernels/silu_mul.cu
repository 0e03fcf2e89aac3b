// kernels/silu_mul.cu: what the engine runs. The lesson's is in chapters/ch07_layer.
//
// out = silu(gate) * up, silu(z) = z / (1 + exp(-z))      (SwiGLU, Shazeer, 2020)
// Grid (T, ceil(width / blockDim.x)); thread i of block y owns column y * blockDim.x + i of its row.
// exp(-z) may be inf: z / inf is then 0, as it should be.
// Bytes: gate and up read once, the result written, 3 * T * width * sizeof(scalar_t).
#include "dtype.cuh"

extern "C" __global__ void silu_mul(const scalar_t* gate_up,  // (T, 2 * width): gate, then up
                                    scalar_t* out,            // (T, width)
                                    int width) {
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= width) return;
    const scalar_t* row = gate_up + (size_t)blockIdx.x * 2 * width;
    const float gate = float(row[column]), up = float(row[width + column]);
    out[(size_t)blockIdx.x * width + column] = scalar_t(gate / (1.0f + expf(-gate)) * up);
}
