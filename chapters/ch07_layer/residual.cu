// chapters/ch07_layer/residual.cu: the worked solution of chapter 07. The engine uses cuBLAS (beta = 1).
//
// The residual: x[i] += branch[i]. A layer adds its result to what came in, it does not replace it.
// cuBLAS does the same inside the product: out = 1 * product + beta * out. That saves writing `branch` and reading it,
// so the layer of stage.py asks for that, `linear(..., add=True)`, and launches this kernel nowhere.
//
// Grid ceil(n / blockDim.x), any block: thread i of the grid owns element i.
// Floor: 2 * n elements read, n written.
#include "dtype.cuh"

extern "C" __global__ void add_residual(scalar_t* x,             // (n,), in place
                                        const scalar_t* branch,  // (n,)
                                        int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = scalar_t(float(x[i]) + float(branch[i]));
}
