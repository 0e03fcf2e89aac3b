// kernels/warpgroup_rows.cuh: 64 rows of queries against 64 keys at a time, by Hopper's products, one warpgroup's part
// of paged_prefill_wgmma.
//
// The softmax is that of warp_rows.cuh: relative to a reference m that stays as it is. In bfloat16, which has the range
// of a float, m is 0: the tensor cores begin sums at zero by themselves. In half it is the largest of a row's first 64
// scores, and -m is where the sums of the score products begin. If some row's sum of weights is not between SMALLEST
// and LARGEST, the whole block walks again, with each row's true maximum as m.
// Weights, once rounded, are the left operand of the next product where the scores lay. The products of 16 keys begin
// when their weights are there, and go on while those of the next 16 are worked out. A warpgroup waits for its own
// products; others compute meanwhile.
#pragma once
#include "kv_tiles.cuh"
#include "wgmma.cuh"

constexpr int WARP_ROWS = 16, DIM_STEPS = HEAD_DIM / 16;  // a product sums over 16 elements
constexpr int PANELS = HEAD_DIM / 64;                     // of 64 elements, in a row of q, keys, values and output
constexpr int PIECE = 64, PIECES = KEYS / PIECE, UNROLLED = 1;
constexpr bool HALF = is_half<scalar_t>;
constexpr float MINUS_INFINITY = -1e30f;                 // finite: minus itself it is 0, where -inf - -inf is NaN
constexpr float SMALLEST = 5.4e-20f, LARGEST = 1.8e19f;  // 2^-64, 2^64; an infinite weight of half is in the sum, too

// A thread's part of a warpgroup's rows: index r = 0, 1 is row 8r + g of its warp.
struct WarpgroupRows {
    float out[PANELS][32];  // unnormalised
    float sum[2];           // of the weights in this thread's columns
    float minus_m[2];       // -m
    unsigned q_at, k_at;    // the warpgroup's rows of q, and the keys of tile 0, in shared memory
    int first_token;        // of the block, in its request: the last key that it sees
    int group_inverse;      // row * group_inverse >> 16 is the row's token, from the block's first one on

    // The last key that row r sees: worked out where it is asked for, since registers are short.
    __device__ __forceinline__ int last_key(int r) const {
        const int row = threadIdx.x / 32 * WARP_ROWS + 8 * r + threadIdx.x % 32 / 4;
        return first_token + (row * group_inverse >> 16);
    }

    __device__ __forceinline__ void clear_references() { minus_m[0] = minus_m[1] = -MINUS_INFINITY; }
    __device__ __forceinline__ void clear() {
        sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < PANELS * 32; i++) out[i / 32][i % 32] = 0.0f;
    }
    // At the end of a walk: the products are done, and `sum` is that of the four lanes which share a row.
    __device__ __forceinline__ void finish() {
        wgmma_wait<0>();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
            sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        }
    }
    __device__ __forceinline__ bool out_of_range(int r) const {  // NaN is not, and must reach the output
        return last_key(r) >= 0 && (sum[r] < SMALLEST || sum[r] > LARGEST);
    }
};

// A number that is the same in all lanes anyway; said so, the compiler computes with it once for the warp.
__device__ __forceinline__ unsigned same_for_all(unsigned x) { return __shfl_sync(~0u, x, 0); }

// Begin s[4n + e]: the scores of row e / 2 with keys 8n + 2t + e % 2 of a piece, which is 64 keys of a tile, less m.
template <bool REFERENCED>
__device__ __forceinline__ void begin_score(float (&s)[32], const WarpgroupRows& rows, int tile, int piece) {
    const unsigned keys = same_for_all(rows.k_at + tile % SLOTS * TILE_BYTES + piece * PIECE * PLACE_BYTES);
#pragma unroll
    for (int e = 0; e < 32; e++) s[e] = REFERENCED ? rows.minus_m[e / 2 % 2] : 0.0f;
    wgmma_begin();
#pragma unroll
    for (int d = 0; d < DIM_STEPS; d++)
        wgmma_64x64x16<scalar_t, false>(s, shared_operand(further<ROWS>(rows.q_at, d)),
                                        shared_operand(further<KEYS>(keys, d)));
    wgmma_commit();
}

// A row sees no key after its own token.
__device__ __forceinline__ void mask(float (&s)[32], const WarpgroupRows& rows, int tile, int piece) {
    const int key = tile * KEYS + piece * PIECE + threadIdx.x % 4 * 2;
#pragma unroll
    for (int e = 0; e < 32; e++)
        if (key + e / 4 * 8 + e % 2 > rows.last_key(e / 2 % 2)) s[e] = MINUS_INFINITY;
}

// Raise the references to the largest of these keys' scores, over the four lanes that share a row.
__device__ __forceinline__ void raise(WarpgroupRows& rows, int tile, int piece) {
    float s[32], top[2] = {MINUS_INFINITY, MINUS_INFINITY};
    begin_score<false>(s, rows, tile, piece);
    wgmma_wait<0>();
    mask(s, rows, tile, piece);
#pragma unroll
    for (int e = 0; e < 32; e++) top[e / 2 % 2] = fmaxf(top[e / 2 % 2], s[e]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
        rows.minus_m[r] = fminf(rows.minus_m[r], -top[r]);
    }
}

// Weights of 64 keys, and their part of the output, begun. The layout of s as a sum is that of p as a left operand.
__device__ __forceinline__ void begin_output(const float (&s)[32], WarpgroupRows& rows, int tile, int piece) {
    const unsigned values =
        same_for_all(rows.k_at + KEYS_BYTES + tile % SLOTS * TILE_BYTES + piece * PIECE * PLACE_BYTES);
    unsigned p[PIECE / 16][4];
#pragma unroll
    for (int k = 0; k < PIECE / 16; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* pair = &s[8 * k + 2 * i];
            p[k][i] = pack<scalar_t>(exp2f(pair[0]), exp2f(pair[1]));
            rows.sum[i % 2] += sum_of<scalar_t>(p[k][i]);
        }
        wgmma_begin();
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
            const unsigned at = values + panel * (KEYS * PLACE_BYTES) + k * 16 * PLACE_BYTES;
            wgmma_64x64x16<scalar_t, true>(rows.out[panel], p[k], shared_operand(at));
        }
    }
    wgmma_commit();
}

// Scores, weights and output of 64 keys. The last products go on when this returns; the next score waits for them.
template <bool MASKED, bool REFERENCED>
__device__ __forceinline__ void attend(WarpgroupRows& rows, int tile, int piece) {
    float s[32];
    begin_score<REFERENCED>(s, rows, tile, piece);
    wgmma_wait<0>();
    if (MASKED) mask(s, rows, tile, piece);
    begin_output(s, rows, tile, piece);
}
