// kernels/prefill_walk.cuh: the walk of a prefill's block over all keys that it sees, and the way of its rows home.
//
// For any Rows (warp_rows.cuh, warpgroup_rows.cuh) with attend<MASKED, REFERENCED>(rows, tile, piece) and raise(rows,
// tile, piece), for PIECE keys of the PIECES * PIECE of a tile. UNROLLED pieces of a whole tile run without a branch.
#pragma once
#include "prefill_block.cuh"

__device__ __forceinline__ int count_tiles(const Span& span) { return (span.keys + KEYS - 1) / KEYS; }

// The first tiles that every row sees whole.
__device__ __forceinline__ int count_whole_tiles(const Span& span) {
    return max(0, min((span.last_key + 1) / KEYS, count_tiles(span)));
}

// All keys, from tile 0, which must be there. Of the `whole` first tiles each row sees every key, so nothing is masked.
// Of the others rows may see a part; pieces that no row sees are left out. REFERENCED: scores are taken relative to the
// rows' references, not to 0.
template <bool REFERENCED, class Rows>
__device__ __forceinline__ void attend_all(Rows& rows, KvTiles& kv, const Span& span, int whole) {
    const int tiles = count_tiles(span);
    for (int j = 0; j < whole; j++) {
        if (j > 0) kv.next(j, tiles);
#pragma unroll UNROLLED
        for (int n = 0; n < PIECES; n++) attend<false, REFERENCED>(rows, j, n);
    }
    for (int j = whole; j < tiles; j++) {
        if (j > 0) kv.next(j, tiles);
#pragma unroll 1
        for (int n = 0; n < PIECES && j * KEYS + n * PIECE < span.keys; n++) attend<true, REFERENCED>(rows, j, n);
    }
}

// The true maxima, in a walk over all keys, behind a barrier; ends with tile 0 on its way again.
template <class Rows>
__device__ __forceinline__ void find_maxima(Rows& rows, KvTiles& kv, const Span& span) {
    const int tiles = count_tiles(span);
    kv.begin();
    for (int j = 0; j < tiles; j++) {
        kv.next(j, tiles);
#pragma unroll 1
        for (int n = 0; n < PIECES; n++) raise(rows, j, n);
    }
    __syncthreads();
    kv.begin();
}

// A warp's rows, normalised and in q's place in shared memory, into `out`, 16 bytes at a time.
__device__ __forceinline__ void send_rows(scalar_t* out, const unsigned char* shared, int first_row, int num_rows,
                                          const Span& span, int kv_head, int num_kv_heads, int group, Divider token) {
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < num_rows * CHUNKS; i += 32) {
        const int row = first_row + i / CHUNKS, chunk = i % CHUNKS, t = token(row);
        const size_t head = ((size_t)(span.row + t) * num_kv_heads + kv_head) * group + row - t * group;
        if (row < span.count * group)
            *reinterpret_cast<uint4*>(out + head * HEAD_DIM + chunk * 8) =
                *reinterpret_cast<const uint4*>(shared + place<ROWS>(row, chunk));
    }
}
