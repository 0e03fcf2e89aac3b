// kernels/put_rows.cu: take_rows.cu the other way round.
//
// In the last layer only the rows go on whose logits somebody wants: keys and values of every token are cached, and
// what attention, output product and MLP would make of the others there, nobody reads. The few rows' residual stream
// then goes back to where the head looks for it: x[rows[r], :] = few[r, :].
// One block a row; thread i copies elements i, i + blockDim.x, ...
// Bytes: each row read and written once, 2 * R * H * sizeof(scalar_t): nothing beside a launch, some 6 us on an
// H200 when they come first, one wait for memory after the other.
#include "dtype.cuh"

extern "C" __global__ void put_rows(const scalar_t* few,  // (R, hidden)
                                    const int* rows,      // (R,), each in [0, T), no two the same
                                    scalar_t* x,          // (T, hidden)
                                    int hidden) {
    const scalar_t* from = few + (size_t)blockIdx.x * hidden;
    scalar_t* to = x + (size_t)rows[blockIdx.x] * hidden;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = from[i];
}
