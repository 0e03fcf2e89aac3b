// kernels/prefill_block.cuh: what one block of a prefill computes: which tokens of which request, and their rows of q.
//
// A block has ROWS rows, of `tokens` = ROWS / group consecutive tokens of one request, with all `group` query heads
// that share a key/value head: row t * group + h is head h of token t, so that keys and values are read once for the
// group. The file that includes this says ROWS and THREADS.
#pragma once
#include "kv_tiles.cuh"

// What a block computes: some new tokens of a request, that follow each other.
struct Span {
    int request;
    int row;       // of q and of the output: the first token's
    int count;     // of tokens; not above 0: the block has nothing to do
    int last_key;  // that the first token sees; may be negative, then some rows see none
    int keys;      // how many the last of the tokens sees
};

// Request r owns the slots from start[r] / tokens + r on, which is at least as many as it needs. "Request" num_requests
// is what follows the last one, with no key. Late tokens see the most keys, so the kernels begin with the last slot.
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
    const int seq_len = owned ? seq_lens[request] : 0, last_key = seq_len - length + first;
    return {request, start + first, count, last_key, seq_len > 0 ? last_key + count : 0};
}

// Row -> token by a multiplication with inverse = 65536 / group + 1: exact up to row 1,086, while group is at most 64.
struct Divider {
    int inverse;
    __device__ __forceinline__ int operator()(int row) const { return row * inverse >> 16; }
};

// The block's rows of q into shared memory; rows beyond the span become zeros. KvTiles::begin commits the copies.
__device__ __forceinline__ void fetch_q(unsigned to, const scalar_t* q, int q_stride, const Span& span, int kv_head,
                                        int group, Divider token) {
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS, t = token(row), head = kv_head * group + row - t * group;
        const bool valid = row < span.count * group;
        const scalar_t* from = q + (size_t)(span.row + t) * q_stride + head * HEAD_DIM + chunk * 8;
        cp_async_16(to + place<ROWS>(row, chunk), valid ? from : q, valid);
    }
}

// What this thread has fetched of q, times `scale`; rounded once more. Waits for its share of tile 0 too.
__device__ __forceinline__ void scale_q(unsigned char* shared, float scale) {
    cp_async_wait<0>();
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        uint4* chunk = reinterpret_cast<uint4*>(shared + place<ROWS>(i / CHUNKS, i % CHUNKS));
        uint4 v = *chunk;
        scalar_t* x = reinterpret_cast<scalar_t*>(&v);
        for (int j = 0; j < 8; j++) x[j] = scalar_t(float(x[j]) * scale);
        *chunk = v;
    }
}

// A span that sees no key.
__device__ __forceinline__ void store_zeros(scalar_t* out, const Span& span, int kv_head, int num_kv_heads, int group,
                                            Divider token) {
    for (int i = threadIdx.x; i < span.count * group * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, t = token(row);
        const size_t head = ((size_t)(span.row + t) * num_kv_heads + kv_head) * group + row - t * group;
        *reinterpret_cast<uint4*>(out + head * HEAD_DIM + i % CHUNKS * 8) = uint4{};
    }
}
