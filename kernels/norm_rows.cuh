// kernels/norm_rows.cuh: RMSNorm of up to 8 rows on their way into a product (gemv.cuh).
//
// Every block does it for itself: that is rows * K elements out of L2, and saves a kernel and a round trip of its
// result. All products wait for it, so it is one pass and one barrier: two groups of threads have four rows each;
// thread i of a group loads the chunks i, i + GROUP_THREADS, ... of 8 columns of its rows, all four on their way
// together, and leaves them times the gain, which it has loaded before they were there. What divides them, the square
// root of their mean square, is the same for a whole row: it goes to the sums of the products instead, which need it
// last.
// Rounded to scalar_t is x * gain, which is as exact as the normalised element would be, in bfloat16. In float16 it may
// be too large or too small where that is not, so there the rows are scaled in a second pass, before they are rounded.
#pragma once
#include "gemv.cuh"

template <class T>
constexpr bool has_range_of_float = false;
template <>
constexpr bool has_range_of_float<__nv_bfloat16> = true;

constexpr int GROUPS = 2, GROUP_ROWS = MAX_ROWS / GROUPS;
constexpr int GROUP_THREADS = THREADS / GROUPS, GROUP_WARPS = WARPS / GROUPS;

struct alignas(16) scalar8 {
    scalar_t x[8];
};
__device__ __forceinline__ scalar8 unpack(uint4 v) { return *reinterpret_cast<scalar8*>(&v); }
__device__ __forceinline__ uint4 load8(const scalar_t* p, int i) { return reinterpret_cast<const uint4*>(p)[i]; }

// Chunks of 8 columns from one prepared row to the next: K / 8, and 4 more where 8 lanes, which read 4 chunks of two
// rows each, would meet in the same banks.
__device__ __forceinline__ int prepared_stride(int K) { return K / 8 | 4; }

// GROUP_ROWS sums over the lanes of a warp, in 6 shuffles: lane i receives that of s[i / 8].
__device__ __forceinline__ float fold_lanes(float (&s)[GROUP_ROWS]) {
    constexpr int SHARE = 32 / GROUP_ROWS;  // lanes that end with one row
#pragma unroll
    for (int half = GROUP_ROWS / 2; half > 0; half /= 2) {  // each lane keeps one half, and gives the other away
        const bool upper = threadIdx.x & SHARE * half;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float keep = upper ? s[i + half] : s[i], give = upper ? s[i] : s[i + half];
            s[i] = keep + __shfl_xor_sync(~0u, give, SHARE * half);
        }
    }
#pragma unroll
    for (int apart = SHARE / 2; apart > 0; apart /= 2) s[0] += __shfl_xor_sync(~0u, s[0], apart);
    return s[0];
}

// What a kernel with a norm has in dynamic shared memory, one behind the other.
struct NormedPlaces {
    uint4 *queue, *rows;
    float* partial;  // of add_warps
    float* squares;  // (GROUP_WARPS, MAX_ROWS): the warps' sums

    __device__ __forceinline__ NormedPlaces(unsigned char* shared, int count, int K)
        : queue(reinterpret_cast<uint4*>(shared)),
          rows(queue + QUEUE),
          partial(reinterpret_cast<float*>(rows + count * prepared_stride(K))),
          squares(partial + 2 * WARPS * count * SUM_STRIDE) {}
};

// Up to 8 rows (rows, K) of a block, and what a thread of it needs to prepare some of them.
struct Norm {
    const scalar_t* gain;  // (K,)
    int rows, K;
    int first, column;       // of this thread: its group's first row, its own first chunk
    int places[GROUP_ROWS];  // of its rows in x
    uint4 w;                 // the gain at `column`
    float scale;             // of row threadIdx.x / TILE, as add_warps gives out the sums; in float16 1

    // Row n is row wanted[n] of x, or row n without `wanted`. Nothing is read here that a kernel of the step writes.
    __device__ __forceinline__ Norm(const scalar_t* gain, const int* wanted, int rows, int K)
        : gain(gain),
          rows(rows),
          K(K),
          first(threadIdx.x / GROUP_THREADS * GROUP_ROWS),
          column(threadIdx.x % GROUP_THREADS),
          w{},
          scale(1.0f) {
        if (column < K / 8) w = load8(gain, column);
#pragma unroll
        for (int n = 0; n < GROUP_ROWS; n++) places[n] = wanted && first + n < rows ? wanted[first + n] : first + n;
    }
    // The rows to shared memory, prepared; and the scale.
    __device__ __forceinline__ void prepare(const NormedPlaces& places, const scalar_t* x, float eps) {
        uint4* to = places.rows;
        float *squares = places.squares, mine[GROUP_ROWS] = {};
        load(to, x, mine);
        const float sum = fold_lanes(mine);
        if (threadIdx.x % 8 == 0) squares[warp_id() % GROUP_WARPS * MAX_ROWS + first + threadIdx.x % 32 / 8] = sum;
        __syncthreads();
        if (has_range_of_float<scalar_t>) {
            if (threadIdx.x < TILE * MAX_ROWS) scale = row_scale(squares, threadIdx.x / TILE, eps);
        } else {
            for (int n = 0; n < min(rows - first, GROUP_ROWS); n++)
                scale_row(to + (first + n) * prepared_stride(K), row_scale(squares, first + n, eps));
            __syncthreads();
        }
    }

  private:
    // This thread's chunks of its rows: their squares, and the chunks times the gain; in float16 as they are.
    __device__ __forceinline__ void load(uint4* to, const scalar_t* x, float (&squares)[GROUP_ROWS]) const {
        uint4 v[GROUP_ROWS], chunk_gain = w;
#pragma unroll 1
        for (int i = column; i < K / 8;) {
#pragma unroll
            for (int n = 0; n < GROUP_ROWS; n++)
                if (first + n < rows) v[n] = load8(x + (size_t)places[n] * K, i);
#pragma unroll
            for (int n = 0; n < GROUP_ROWS; n++)
                if (first + n < rows) to[(first + n) * prepared_stride(K) + i] = prepared(v[n], chunk_gain, squares[n]);
            i += GROUP_THREADS;
            if (i < K / 8) chunk_gain = load8(gain, i);
        }
    }
    static __device__ __forceinline__ uint4 prepared(uint4 chunk, uint4 gain, float& squares) {
        scalar8 v = unpack(chunk), w = unpack(gain);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            squares += float(v.x[e]) * float(v.x[e]);
            if (has_range_of_float<scalar_t>) v.x[e] = scalar_t(float(v.x[e]) * float(w.x[e]));
        }
        return *reinterpret_cast<uint4*>(&v);
    }
    // 1 / sqrt(mean square + eps) of row n out of its group's warps' sums.
    __device__ __forceinline__ float row_scale(const float* squares, int n, float eps) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < GROUP_WARPS; i++) sum += squares[i * MAX_ROWS + n];
        return rsqrtf(sum / K + eps);
    }
    // This thread's part of a row, times the gain and the scale.
    __device__ __forceinline__ void scale_row(uint4* row, float scale) const {
#pragma unroll 1
        for (int i = column; i < K / 8; i += GROUP_THREADS) {
            scalar8 v = unpack(row[i]), w = unpack(load8(gain, i));
#pragma unroll
            for (int e = 0; e < 8; e++) v.x[e] = scalar_t(float(v.x[e]) * scale * float(w.x[e]));
            row[i] = *reinterpret_cast<uint4*>(&v);
        }
    }
};
