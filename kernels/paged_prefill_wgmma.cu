// kernels/paged_prefill_wgmma.cu: paged_prefill.cu by Hopper's products: causal attention of many new tokens a request.
//
// requires: sm_90a, 16-bit SCALAR, HEAD_DIM 64 or 128, and what else paged_prefill.cu says, which stands in where that
// does not hold. It also says how rows and blocks are laid out; the arguments are the same.
//
// Grid (num_kv_heads, slots), slots = num_tokens / tokens + num_requests + 1, tokens = ROWS / group; THREADS threads.
// A warpgroup of 128 threads has 64 rows. The tensor cores read q, keys and values in shared memory by themselves
// (wgmma.cuh); only scores, weights and sums come to registers (warpgroup_rows.cuh). While one warpgroup takes
// exponentials, the tensor cores work for the other ones of the multiprocessor.
//
// Floor: 4 * HEAD_DIM operations for each pair of a row and a key that it sees, at the tensor cores' rate, 989 TFLOP/s;
// with 64 elements the exponentials, 16 a clock of a multiprocessor, take as long again. Measured on an H200, 32 heads,
// 8 of keys and values: a prompt of 4,096 in 147 us with 64 elements a head, 468 TFLOP/s, and in 225 us with 128, 610.
#include "dtype.cuh"
#ifndef HEAD_DIM
#error "paged_prefill_wgmma.cu is compiled for one head size, 64 or 128: give -DHEAD_DIM=64"
#endif
#include "wgmma.cuh"

// By registers: two blocks of 64 elements have room on a multiprocessor, or one of 128.
constexpr int WARPGROUPS = HEAD_DIM == 64 ? 2 : 3, BLOCKS = HEAD_DIM == 64 ? 2 : 1;
constexpr int ROWS = 64 * WARPGROUPS, THREADS = 128 * WARPGROUPS;  // of a block
constexpr int FETCHERS = 256;  // 384 threads could not share a tile evenly: the last 128 fetch nothing
constexpr int KEYS = HEAD_DIM == 64 ? 128 : 64;  // of a tile
constexpr int SLOTS = HEAD_DIM == 64 ? 2 : 3;    // with three the last products of a tile go on behind the next barrier
constexpr int PLACE_BYTES = 128;                 // as wgmma.cuh wants it

// Behind the barrier the oldest slot is written over. With two slots it is the last tile's, which products may still
// read; those that read the oldest of three have been waited for, in the last tile's attend.
__device__ __forceinline__ void before_barrier() {
    if (SLOTS == 2) wgmma_wait<0>();
    shared_writes_for_wgmma();
}

#include "prefill_block.cuh"
#include "warpgroup_rows.cuh"
#include "prefill_walk.cuh"

// The warp's rows, normalised, by way of its part of q's place in shared memory, so that they leave 16 bytes at a time.
__device__ __forceinline__ void store(scalar_t* out, unsigned char* shared, const WarpgroupRows& rows, const Span& span,
                                      int kv_head, int num_kv_heads, int group, Divider token) {
    const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * WARP_ROWS;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float inverse = 1.0f / rows.sum[r];
#pragma unroll
        for (int n = 0; n < CHUNKS; n++) {
            const float* o = &rows.out[n / 8][n % 8 * 4 + 2 * r];
            const unsigned pair = rows.last_key(r) < 0 ? 0 : pack<scalar_t>(o[0] * inverse, o[1] * inverse);
            const int at = place<ROWS>(first_row + 8 * r + lane / 4, n) + lane % 4 * 4;
            *reinterpret_cast<unsigned*>(shared + at) = pair;
        }
    }
    __syncwarp();
    send_rows(out, shared, first_row, WARP_ROWS, span, kv_head, num_kv_heads, group, token);
}

// Where a thread's warpgroup finds q and the tiles in shared memory, and what its rows see.
__device__ __forceinline__ void begin(WarpgroupRows& rows, unsigned q_tile, unsigned tiles, const Span& span,
                                      Divider token) {
    rows.q_at = q_tile + same_for_all(threadIdx.x / 128) * 64 * PLACE_BYTES;
    rows.k_at = tiles;
    rows.first_token = span.last_key;
    rows.group_inverse = token.inverse;
    rows.clear();
    rows.clear_references();
}

// All lanes of a warp have found the same span; said so, the compiler counts tiles and addresses once for all of them.
__device__ __forceinline__ Span known_as_one(Span span) {
    span.last_key = same_for_all(span.last_key);
    span.keys = same_for_all(span.keys);
    return span;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    paged_prefill_wgmma(const scalar_t* q,   // (num_tokens, num_kv_heads * group * HEAD_DIM), rows q_stride apart
                        const scalar_t* kv,  // (num_pages, num_kv_heads, 2, PAGE, HEAD_DIM): keys, then values
                        const int* query_start_loc,  // (num_requests + 1,)
                        const int* seq_lens,         // (num_requests,): the new tokens included; 0 gives zeros
                        const int* block_table,      // (num_requests, table_width)
                        scalar_t* out,               // (num_tokens, num_kv_heads * group * HEAD_DIM)
                        int q_stride, int num_tokens, int num_requests, int table_width, int num_kv_heads, int group,
                        int group_inverse,                     // 65536 / group + 1
                        unsigned tokens_inverse,               // 2^32 / (ROWS / group), rounded up
                        float scale) {                         // log2(e) / sqrt(HEAD_DIM)
    extern __shared__ __align__(1024) unsigned char shared[];  // ROWS rows of q, then SLOTS tiles
    const Divider token{group_inverse};
    const int kv_head = blockIdx.x, slot = gridDim.y - 1 - blockIdx.y, tokens = token(ROWS);  // the longest work first
    const Span span =
        known_as_one(find_span(query_start_loc, seq_lens, slot, tokens, tokens_inverse, num_tokens, num_requests));
    if (span.count <= 0) return;
    if (span.keys <= 0) return store_zeros(out, span, kv_head, num_kv_heads, group, token);

    const unsigned q_tile = shared_address(shared), tiles = q_tile + ROWS * ROW_BYTES;
    fetch_q(q_tile, q, q_stride, span, kv_head, group, token);
    KvTiles pages{kv, block_table, table_width, num_kv_heads, span.request, seq_lens[span.request], tiles};
    pages.begin();
    scale_q(shared, scale);

    const int count = count_tiles(span);
    WarpgroupRows rows;
    begin(rows, q_tile, tiles, span, token);
    pages.next(0, count);
    if (HALF) raise(rows, 0, 0);
    attend_all<HALF>(rows, pages, span, count_whole_tiles(span));
    rows.finish();
    if (__syncthreads_or(rows.out_of_range(0) || rows.out_of_range(1))) {
        find_maxima(rows, pages, span);
        rows.clear();
        pages.next(0, count);
        attend_all<true>(rows, pages, span, 0);  // rare: one short loop, which masks every tile
        rows.finish();
        __syncthreads();  // all products with q are over, whose place `store` takes
    }
    store(out, shared, rows, span, kv_head, num_kv_heads, group, token);
}
