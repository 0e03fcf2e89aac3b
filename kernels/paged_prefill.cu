// kernels/paged_prefill.cu: causal attention of many new tokens a request over the paged cache, on tensor cores.
//
// requires: sm_80, 16-bit SCALAR, HEAD_DIM 64 or 128; pages (blocks of the cache) of 16 tokens, at most 64 query heads
// a key/value head. kernels/attention.cu stands in where that does not hold. Rows of q lie a multiple of
// 8 elements apart.
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
// with mma.sync on an H200. Measured there, 32 heads of 64, 8 of keys and values: a prompt of 4,096 in 184 us, 373
// TFLOP/s; 32 of 2,000 in 1,481 us, 354.
#include "dtype.cuh"
#ifndef HEAD_DIM
#error "paged_prefill.cu is compiled for one head size, 64 or 128: give -DHEAD_DIM=64"
#endif
#include "kv_tiles.cuh"
#include "warp_rows.cuh"

constexpr int ROWS = THREADS;  // of a block

// What a block computes: tokens [first, first + count) of a request.
struct Span {
    int request;
    int start;         // the request's first row of q
    int first, count;  // in tokens
    int context;       // keys before the request's first new token; may be negative: then some rows see none
    int keys;          // that the last of the tokens sees
};

// Request r owns the slots from start[r] / tokens + r on, which is at least as many as it needs. "Request" num_requests
// is what follows the last one, with no key. The last slot comes first: late tokens see the most keys.
__device__ __forceinline__ Span find_span(const int* query_start_loc, const int* seq_lens, int slot, int tokens,
                                          unsigned tokens_inverse, int num_tokens, int num_requests) {
    const int lane = threadIdx.x % 32;
    int request = -1;
    for (int r = lane; r - lane <= num_requests; r += 32) {
        const bool before = r <= num_requests && (int)__umulhi(query_start_loc[r], tokens_inverse) + r <= slot;
        request += __popc(__ballot_sync(~0u, before));
    }
    const bool owned = request < num_requests;
    const int start = query_start_loc[request], length = (owned ? query_start_loc[request + 1] : num_tokens) - start;
    const int first = (slot - (int)__umulhi(start, tokens_inverse) - request) * tokens;
    const int count = owned && length == 1 ? 0 : min(tokens, length - first);  // one token: paged_decode.cu's
    const int seq_len = owned ? seq_lens[request] : 0, context = seq_len - length;
    return {request, start, first, count, context, seq_len > 0 ? context + first + count : 0};
}

// Row -> token by a multiplication with inverse = 65536 / group + 1: exact for rows up to 128, all that a block has.
struct Divider {
    int inverse;
    __device__ __forceinline__ int operator()(int row) const { return row * inverse >> 16; }
};

// All keys, from tile 0, which must be there. The first tiles are seen whole by every row: one block of instructions
// without a branch. In the last one or two each row sees a part; pieces that no row sees are left out.
__device__ __forceinline__ void attend_all(WarpRows& rows, KvTiles& kv, const Span& span) {
    const int tiles = (span.keys + KEYS - 1) / KEYS;
    const int whole = max(0, min((span.context + span.first + 1) / KEYS, tiles));
    for (int j = 0; j < whole; j++) {
        if (j > 0) kv.next(j, tiles);
#pragma unroll KEEP_Q ? KEY_STEPS : 1
        for (int n = 0; n < KEY_STEPS; n++) attend<false>(rows, j, n);
    }
    for (int j = whole; j < tiles; j++) {
        if (j > 0) kv.next(j, tiles);
#pragma unroll 1
        for (int n = 0; n < KEY_STEPS && j * KEYS + n * 16 < span.keys; n++) attend<true>(rows, j, n);
    }
}

// The true maxima, in a walk over all keys; ends with tile 0 on its way again.
__device__ __forceinline__ void find_maxima(WarpRows& rows, KvTiles& kv, const Span& span) {
    const int tiles = (span.keys + KEYS - 1) / KEYS;
    kv.begin();
    for (int j = 0; j < tiles; j++) {
        kv.next(j, tiles);
#pragma unroll 1
        for (int n = 0; n < KEY_STEPS; n++) raise(rows, j, n);
    }
    __syncthreads();
    kv.begin();
}

// The block's rows of q into shared memory; rows beyond the span become zeros.
__device__ __forceinline__ void fetch_q(unsigned to, const scalar_t* q, int q_stride, const Span& span, int kv_head,
                                        int group, Divider token) {
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS, t = token(row), head = kv_head * group + row - t * group;
        const bool valid = row < span.count * group;
        const scalar_t* from = q + (size_t)(span.start + span.first + t) * q_stride + head * HEAD_DIM + chunk * 8;
        cp_async_16(to + swizzled(row, chunk), valid ? from : q, valid);
    }
}

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
            const int at = swizzled(first_row + 8 * r + lane / 4, n) + lane % 4 * 4;
            *reinterpret_cast<unsigned*>(shared + at) = pair;
        }
    }
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < WARP_ROWS * CHUNKS; i += 32) {
        const int row = first_row + i / CHUNKS, chunk = i % CHUNKS, t = token(row);
        const size_t head = ((size_t)(span.start + span.first + t) * num_kv_heads + kv_head) * group + row - t * group;
        if (row < span.count * group)
            *reinterpret_cast<uint4*>(out + head * HEAD_DIM + chunk * 8) =
                *reinterpret_cast<const uint4*>(shared + swizzled(row, chunk));
    }
}

// The warp's rows of q times `scale`.
__device__ __forceinline__ void scale_q(unsigned char* shared, float scale) {
    const int lane = threadIdx.x % 32;
    uint4* rows = reinterpret_cast<uint4*>(shared + threadIdx.x / 32 * WARP_ROWS * ROW_BYTES);
#pragma unroll 4
    for (int i = lane; i < WARP_ROWS * CHUNKS; i += 32) {
        uint4 v = rows[i];
        scalar_t* x = reinterpret_cast<scalar_t*>(&v);
        for (int j = 0; j < 8; j++) x[j] = scalar_t(float(x[j]) * scale);
        rows[i] = v;
    }
    __syncwarp();
}

// A span that sees no key.
__device__ __forceinline__ void store_zeros(scalar_t* out, const Span& span, int kv_head, int num_kv_heads, int group,
                                            Divider token) {
    for (int i = threadIdx.x; i < span.count * group * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, t = token(row);
        const size_t head = ((size_t)(span.start + span.first + t) * num_kv_heads + kv_head) * group + row - t * group;
        *reinterpret_cast<uint4*>(out + head * HEAD_DIM + i % CHUNKS * 8) = uint4{};
    }
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
    const int kv_head = blockIdx.x, slot = gridDim.y - 1 - blockIdx.y, tokens = token(ROWS);
    const Span span = find_span(query_start_loc, seq_lens, slot, tokens, tokens_inverse, num_tokens, num_requests);
    if (span.count <= 0) return;
    if (span.keys <= 0) return store_zeros(out, span, kv_head, num_kv_heads, group, token);

    const unsigned q_tile = shared_address(shared), tiles = q_tile + ROWS * ROW_BYTES;
    fetch_q(q_tile, q, q_stride, span, kv_head, group, token);
    const int* table = block_table + (size_t)span.request * table_width;
    KvTiles pages(kv, table, seq_lens[span.request], kv_head, num_kv_heads, tiles);
    pages.begin();

    const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * WARP_ROWS, count = (span.keys + KEYS - 1) / KEYS;
    WarpRows rows;
    rows.q_at = q_tile + swizzled(first_row + lane % 16, lane / 16);
    rows.k_at = tiles + swizzled(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    rows.v_at = tiles + KEYS_BYTES + swizzled(lane % 16, lane / 16);
    rows.first_token = span.context + span.first;
    rows.group_inverse = group_inverse;
    rows.clear();
    rows.clear_references();
    pages.next(0, count);
    scale_q(shared, scale);
    if (KEEP_Q)
#pragma unroll
        for (int d = 0; d < DIM_STEPS; d++) rows.load_q(d);
    raise(rows, 0, 0);
    for (int walk = 0;; walk++) {
        attend_all(rows, pages, span);
        if (!__syncthreads_or(rows.overflowed()) || walk > 0) break;
        find_maxima(rows, pages, span);
        rows.clear();
        pages.next(0, count);
    }
    store(out, shared, rows, span, kv_head, num_kv_heads, group, token);
}
