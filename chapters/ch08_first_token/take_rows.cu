// chapters/ch08_first_token/take_rows.cu: the worked solution of chapter 08. The engine runs kernels/take_rows.cu.
//
// out[r] = x[rows[r]]: of all tokens of a step only the last of each request needs logits, and the product with the
// vocabulary is the largest of all. So its rows are picked first.
//
// Grid (num_rows), any block: block r owns row r of out, its thread i the columns i, i + blockDim.x ...
#include "dtype.cuh"

extern "C" __global__ void take_rows(const scalar_t* x,  // (num_tokens, hidden)
                                     const int* rows,    // (num_rows,)
                                     scalar_t* out,      // (num_rows, hidden)
                                     int hidden) {
    const scalar_t* source = x + (size_t)rows[blockIdx.x] * hidden;
    scalar_t* target = out + (size_t)blockIdx.x * hidden;
    for (int c = threadIdx.x; c < hidden; c += blockDim.x) target[c] = source[c];
}
