// kernels/paged_prefill.cu: causal attention of many new tokens a request over the paged cache, on tensor cores.
//
// requires: sm_80, 16-bit SCALAR, HEAD_DIM 64 or 128; pages (blocks of the cache) of 16 tokens, at most 64 query heads
// a key/value head (the engine asks for 8). kernels/attention.cu stands in where that does not hold. Rows of q lie a
// multiple of 8 elements apart.
//
// Grid (num_kv_heads, slots), slots = num_tokens / tokens + num_requests + 1, tokens = ROWS / group; 128 threads.
// All `group` query heads that share a key/value head are computed together: row t * group + h of a block is head h of
// its token t, so that keys and values are read once for the group. A block owns `tokens` consecutive tokens of one
// request and one key/value head, a warp 32 of the rows; find_span says which, from lengths on the device, so that a
// captured launch stays right. Requests of one token are left to paged_decode.cu. Rows that nobody owns become zeros.
// The block walks over the keys in tiles (kv_tiles.cuh); scores, weights and sums stay in registers (warp_rows.cuh).
// q is scaled before, and rounded once more. A row's softmax is taken relative to the largest of its first 16 scores.
// If that was too low, so that a sum passed SUM_LIMIT or a half overflowed, the block finds the true maxima and walks
// once more.
//
// Floor: 4 * HEAD_DIM operations for each pair of a row and a key that it sees, at the tensor cores' rate, 630 TFLOP/s
// with mma.sync on an H200. Measured there, 32 heads of 64, 8 of keys and values: a prompt of 4,096 in 183 us, 376
// TFLOP/s; 32 of 2,000 in 1,479 us, 355.
#include "dtype.cuh"
#ifndef HEAD_DIM
#error "paged_prefill.cu is compiled for one head size, 64 or 128: give -DHEAD_DIM=64"
#endif

constexpr int ROWS = 128, THREADS = 128, FETCHERS = THREADS;  // of a block
constexpr int KEYS = HEAD_DIM == 64 ? 64 : 32;                // of a tile: by the registers of a fully unrolled one
constexpr int SLOTS = 2, PLACE_BYTES = HEAD_DIM * 2;
__device__ __forceinline__ void before_barrier() {}
#include "prefill_block.cuh"
#include "warp_rows.cuh"
#include "prefill_walk.cuh"

// The warp's rows, normalised, by way of its part of q's place in shared memory, so that they leave 16 bytes at a time.
__device__ __forceinline__ void store(scalar_t* out, unsigned char* shared, const WarpRows& rows, const Span& span,
                                      int kv_head, int num_kv_heads, int group, Divider token) {
    const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * WARP_ROWS;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const float inverse = 1.0f / rows.sum[r / 2][r % 2 * 2];
#pragma unroll
        for (int n = 0; n < DIM_TILES; n++) {
            const float* o = &rows.out[r / 2][n][r % 2 * 2];
            const unsigned pair = rows.last_key(r) < 0 ? 0 : pack<scalar_t>(o[0] * inverse, o[1] * inverse);
            const int at = place<ROWS>(first_row + 8 * r + lane / 4, n) + lane % 4 * 4;
            *reinterpret_cast<unsigned*>(shared + at) = pair;
        }
    }
    __syncwarp();
    send_rows(out, shared, first_row, WARP_ROWS, span, kv_head, num_kv_heads, group, token);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    paged_prefill(const scalar_t* q,           // (num_tokens, num_kv_heads * group * HEAD_DIM), rows q_stride apart
                  const scalar_t* kv,          // (num_pages, num_kv_heads, 2, PAGE, HEAD_DIM): keys, then values
                  const int* query_start_loc,  // (num_requests + 1,)
                  const int* seq_lens,         // (num_requests,): the new tokens included; 0 gives zeros
                  const int* block_table,      // (num_requests, table_width)
                  scalar_t* out,               // (num_tokens, num_kv_heads * group * HEAD_DIM)
                  int q_stride, int num_tokens, int num_requests, int table_width, int num_kv_heads, int group,
                  int group_inverse,                           // 65536 / group + 1
                  unsigned tokens_inverse,                     // 2^32 / (ROWS / group), rounded up
                  float scale) {                               // log2(e) / sqrt(HEAD_DIM)
    extern __shared__ __align__(1024) unsigned char shared[];  // ROWS rows of q, then two tiles
    const Divider token{group_inverse};
    const int kv_head = blockIdx.x, slot = gridDim.y - 1 - blockIdx.y, tokens = token(ROWS);  // the longest work first
    const Span span = find_span(query_start_loc, seq_lens, slot, tokens, tokens_inverse, num_tokens, num_requests);
    if (span.count <= 0) return;
    if (span.keys <= 0) return store_zeros(out, span, kv_head, num_kv_heads, group, token);

    const unsigned q_tile = shared_address(shared), tiles = q_tile + ROWS * ROW_BYTES;
    fetch_q(q_tile, q, q_stride, span, kv_head, group, token);
    KvTiles pages{kv, block_table, table_width, num_kv_heads, span.request, seq_lens[span.request], tiles};
    pages.begin();
    scale_q(shared, scale);

    const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * WARP_ROWS, count = count_tiles(span);
    WarpRows rows;
    rows.q_at = q_tile + place<ROWS>(first_row + lane % 16, lane / 16);
    rows.k_at = tiles + place<KEYS>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    rows.v_at = tiles + KEYS_BYTES + place<KEYS>(lane % 16, lane / 16);
    rows.first_token = span.last_key;
    rows.group_inverse = group_inverse;
    rows.clear();
    rows.clear_references();
    pages.next(0, count);
    if (KEEP_Q)
#pragma unroll
        for (int d = 0; d < DIM_STEPS; d++) rows.load_q(d);
    raise(rows, 0, 0);
    for (int walk = 0;; walk++) {
        attend_all<true>(rows, pages, span, count_whole_tiles(span));
        if (!__syncthreads_or(rows.overflowed()) || walk > 0) break;
        find_maxima(rows, pages, span);
        rows.clear();
        pages.next(0, count);
    }
    store(out, shared, rows, span, kv_head, num_kv_heads, group, token);
}
