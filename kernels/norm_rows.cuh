// kernels/norm_rows.cuh: RMSNorm of up to 8 rows into shared memory, the prologue of a product (gemv.cuh).
//
// Every block does it for itself: that is rows * K elements out of L2, and saves a kernel and a round trip of its
// result. All products wait for it, so all threads work at it: thread i copies the chunks i, i + THREADS, ... of 8
// columns of every row, all on their way together, and squares and scales what it copied itself. The gain is copied
// before the rows are there.
// Results are rounded to scalar_t, as if rms_norm.cu had written them.
#pragma once
#include "gemv.cuh"

// Chunks of 8 columns from one normalised row to the next: K / 8, and 4 more where 8 lanes, which read 4 chunks of two
// rows each, would meet in the same banks.
__device__ __forceinline__ int normed_stride(int K) { return K / 8 | 4; }

// Begin to copy this thread's part of the gain (K,) to shared memory, as a group.
__device__ __forceinline__ void ask_gain(scalar8* to, const scalar_t* gain, int K) {
    for (int i = threadIdx.x; i < K / 8; i += THREADS) cp_async_16(shared_address(to + i), gain + i * 8, true);
    cp_async_commit();
}

// This thread's part of the rows to shared memory, through registers: copies by cp.async would arrive behind the
// weights. Row n is row wanted[n] of x, or row n without `wanted`.
__device__ __forceinline__ void load_rows(scalar8* to, const scalar_t* x, const int* wanted, int rows, int K) {
#pragma unroll 1
    for (int i = threadIdx.x; i < K / 8; i += THREADS) {
        scalar8 v[MAX_ROWS];
#pragma unroll
        for (int n = 0; n < MAX_ROWS; n++)
            if (n < rows) v[n] = reinterpret_cast<const scalar8*>(x + (size_t)(wanted ? wanted[n] : n) * K)[i];
#pragma unroll
        for (int n = 0; n < MAX_ROWS; n++)
            if (n < rows) to[n * normed_stride(K) + i] = v[n];
    }
}

// A warp's sum of the squares of its threads' parts of a row.
__device__ __forceinline__ float sum_squares(const scalar8* row, int K) {
    float squares = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x; i < K / 8; i += THREADS) {
        const scalar8 v = row[i];
#pragma unroll
        for (int e = 0; e < 8; e++) squares += float(v.x[e]) * float(v.x[e]);
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) squares += __shfl_xor_sync(~0u, squares, apart);
    return squares;
}

// This thread's part of a row, times the gain and 1 / sqrt(mean square + eps). squares: a sum for each warp.
__device__ __forceinline__ void scale_row(scalar8* row, const scalar8* gain, const float (&squares)[WARPS], int K,
                                          float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += squares[w];
    const float scale = rsqrtf(sum / K + eps);
#pragma unroll 1
    for (int i = threadIdx.x; i < K / 8; i += THREADS) {
        const scalar8 w = gain[i];
        scalar8 v = row[i];
#pragma unroll
        for (int e = 0; e < 8; e++) v.x[e] = scalar_t(float(v.x[e]) * scale * float(w.x[e]));
        row[i] = v;
    }
}

// What a kernel with a norm does before its first product: everything that waits for nothing, then the rows.
// shared: the queue, the normalised rows, the gain.
template <class Rows>
__device__ __forceinline__ Stream<Rows, NormedRows> begin_normed(unsigned char* shared, const scalar_t* x,
                                                                 const int* wanted, const scalar_t* gain,
                                                                 const scalar_t* weight, int rows, int K, int tiles,
                                                                 Rows tile_rows, float eps) {
    __shared__ __align__(16) float squares[MAX_ROWS][WARPS];
    const int stride = normed_stride(K);
    uint4* queue = reinterpret_cast<uint4*>(shared);
    scalar8* normed = reinterpret_cast<scalar8*>(queue + DEPTH * NormedRows::PARTS * THREADS);
    scalar8* gains = normed + rows * stride;
    Stream<Rows, NormedRows> stream(weight, K, tiles, queue, tile_rows,
                                    NormedRows(reinterpret_cast<uint4*>(normed), rows, stride));
    ask_gain(gains, gain, K);
    stream.begin();
    wait_for_previous_kernel();
    load_rows(normed, x, wanted, rows, K);
#pragma unroll 4
    for (int n = 0; n < rows; n++) {
        const float sum = sum_squares(normed + n * stride, K);
        if (threadIdx.x % 32 == 0) squares[n][warp_id()] = sum;
    }
    cp_async_wait<0>();  // the gain is there
    __syncthreads();     // and so are all sums
#pragma unroll 2
    for (int n = 0; n < rows; n++) scale_row(normed + n * stride, gains, squares[n], K, eps);
    __syncthreads();
    stream.begin_x();
    return stream;
}
