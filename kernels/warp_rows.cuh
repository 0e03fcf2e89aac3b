// kernels/warp_rows.cuh: 32 rows of queries against 16 keys at a time, on tensor cores, one warp's part of
// paged_prefill.
//
// FlashAttention-2 (Dao, 2023), made shorter. 2^(s - m), over the sum of the same, is right for any reference m that
// neither overflows nor sinks a row to zero. So m is no running maximum but the largest of the row's first 16 scores:
// the sum is then at least 1, and nothing is rescaled on the way. -m is what the sums of the score products start from,
// q comes scaled, and the sums of weights are one more column of products, P times ones. So nothing but exponentials
// and their rounding stands between two products. Whether m was too low shows in the end.
//
// A lane holds of a sum of products what ptx.cuh says: with g = lane / 4 and t = lane % 4, rows g and g+8, columns 2t
// and 2t+1. Weights, once rounded, are the left operand of the next product where the scores lay. Keys and values come
// by ldmatrix out of the tiles of kv_tiles.cuh; each such operand serves both halves of the rows: with 16 rows shared
// memory would limit.
#pragma once
#include "kv_tiles.cuh"

constexpr int WARP_ROWS = 32, DIM_STEPS = HEAD_DIM / 16, DIM_TILES = HEAD_DIM / 8, PIECE = 16, PIECES = KEYS / PIECE;
constexpr bool KEEP_Q = HEAD_DIM == 64;  // in registers for all tiles; larger heads are read again
constexpr int UNROLLED = KEEP_Q ? PIECES : 1;
constexpr float MINUS_INFINITY = -1e30f;  // finite: minus itself it is 0, where -inf - -inf is NaN
constexpr float SUM_LIMIT = 1.8e19f;      // 2^64

// A warp's 32 rows, as two operands of 16. Index r = 0..3 is row 8r + g: half r % 2 of operand r / 2.
struct WarpRows {
    unsigned q[DIM_STEPS][2][4];
    float out[2][DIM_TILES][4];  // unnormalised
    float sum[2][4];             // of weights; each column is the row's sum
    float minus_m[2][4];         // -m, laid out as the sums are
    unsigned q_at, k_at, v_at;   // this lane's row and chunk of the first 16x16 piece, in shared memory
    int first_token;             // of the block, in its request: the last key that it sees
    int group_inverse;           // row * group_inverse >> 16 is the row's token, from the block's first one on

    // The last key that row r sees: worked out where it is asked for, since registers are short.
    __device__ __forceinline__ int last_key(int r) const {
        const int row = threadIdx.x / 32 * WARP_ROWS + 8 * r + threadIdx.x % 32 / 4;
        return first_token + (row * group_inverse >> 16);
    }
    __device__ __forceinline__ void clear_references() {
#pragma unroll
        for (int e = 0; e < 8; e++) minus_m[e / 4][e % 4] = -MINUS_INFINITY;
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                sum[i][e] = 0.0f;
#pragma unroll
                for (int n = 0; n < DIM_TILES; n++) out[i][n][e] = 0.0f;
            }
    }
    __device__ __forceinline__ void load_q(int d) {
        ldmatrix_x4(q[d][0], further<ROWS>(q_at, d));
        ldmatrix_x4(q[d][1], further<ROWS>(q_at, d) + 16 * PLACE_BYTES);
    }
    __device__ __forceinline__ bool overflowed() const {  // NaN has not, and must reach the output
        return fmaxf(fmaxf(sum[0][0], sum[0][2]), fmaxf(sum[1][0], sum[1][2])) > SUM_LIMIT;
    }
};

// s[i][n][e]: the scores of operand i's rows with keys 8n and on of a piece, which is 16 keys of a tile, plus base.
// MASKED: a row sees no key after its own token.
template <bool MASKED>
__device__ __forceinline__ void score(float (&s)[2][2][4], const float (&base)[2][4], WarpRows& rows, int tile,
                                      int piece) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 8; e++) s[i][e / 4][e % 4] = base[i][e % 4];
#pragma unroll
    for (int d = 0; d < DIM_STEPS; d++) {
        unsigned k[4];
        ldmatrix_x4(k, further<KEYS>(rows.k_at + tile % SLOTS * TILE_BYTES, d) + piece * 16 * PLACE_BYTES);
        if (!KEEP_Q) rows.load_q(d);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            mma_16x8x16<scalar_t>(s[i][0], rows.q[d][i], k[0], k[1]);
            mma_16x8x16<scalar_t>(s[i][1], rows.q[d][i], k[2], k[3]);
        }
    }
    if (!MASKED) return;
    const int key = tile * KEYS + piece * 16 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (key + e / 2 * 8 + e % 2 > rows.last_key(r)) s[r / 2][e / 2][r % 2 * 2 + e % 2] = MINUS_INFINITY;
}

// Raise the references to the largest of these 16 keys' scores, over the four lanes that share a row.
__device__ __forceinline__ void raise(WarpRows& rows, int tile, int piece) {
    const float zero[2][4] = {};
    float s[2][2][4];
    score<true>(s, zero, rows, tile, piece);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const float *x = &s[r / 2][0][r % 2 * 2], *y = &s[r / 2][1][r % 2 * 2];
        float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(y[0], y[1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        float* m = &rows.minus_m[r / 2][r % 2 * 2];
        m[0] = m[1] = fminf(m[0], -top);
    }
}

// Scores, weights and output of 16 keys. The layout of s as a sum is that of p as a left operand.
template <bool MASKED, bool REFERENCED>
__device__ __forceinline__ void attend(WarpRows& rows, int tile, int piece) {
    static_assert(REFERENCED, "-m is where sums begin");
    const unsigned ones = pack<scalar_t>(1.0f, 1.0f);
    float s[2][2][4];
    score<MASKED>(s, rows.minus_m, rows, tile, piece);
    unsigned p[2][4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {  // keys 8 * (e / 2) and on, half e % 2 of the rows
            const float* pair = &s[i][e / 2][e % 2 * 2];
            p[i][e] = pack<scalar_t>(exp2f(pair[0]), exp2f(pair[1]));
        }
        mma_16x8x16<scalar_t>(rows.sum[i], p[i], ones, ones);
    }
#pragma unroll
    for (int d = 0; d < DIM_STEPS; d++) {
        unsigned v[4];
        ldmatrix_x4_transposed(v, further<KEYS>(rows.v_at + tile % SLOTS * TILE_BYTES, d) + piece * 16 * PLACE_BYTES);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            mma_16x8x16<scalar_t>(rows.out[i][2 * d], p[i], v[0], v[1]);
            mma_16x8x16<scalar_t>(rows.out[i][2 * d + 1], p[i], v[2], v[3]);
        }
    }
}
