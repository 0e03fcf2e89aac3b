// chapters/ch07_layer/silu_mul.cu: the worked solution of chapter 07. The engine runs kernels/silu_mul.cu.
//
// The middle of SwiGLU: out = silu(gate) * up with silu(z) = z / (1 + exp(-z)). One product made gate and up: a row of
// gate_up holds the gate's `inter` columns, then the up's. For a very negative z, exp(-z) is inf and z / inf is -0.
//
// Grid (num_tokens), any block: block t owns row t, its thread i the columns i, i + blockDim.x ...
// Floor: 2 * inter elements a row read, inter written.
#include "dtype.cuh"

extern "C" __global__ void silu_mul(const scalar_t* gate_up,  // (num_tokens, 2 * inter)
                                    scalar_t* out,            // (num_tokens, inter)
                                    int inter) {
    const scalar_t* gate = gate_up + (size_t)blockIdx.x * 2 * inter;
    const scalar_t* up = gate + inter;
    out += (size_t)blockIdx.x * inter;
    for (int c = threadIdx.x; c < inter; c += blockDim.x) {
        // EXERCISE-BEGIN 7.2 (about 2 lines): out[c] = silu(gate[c]) * up[c], in float
        float z = float(gate[c]);
        out[c] = scalar_t(z / (1.0f + expf(-z)) * float(up[c]));
        // EXERCISE-END 7.2
    }
}
