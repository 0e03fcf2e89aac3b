// kernels/kv_tiles.cuh: keys and values on their way from the pages of the cache into shared memory, a tile ahead.
//
// A tile is KEYS keys, then their KEYS values, a row of HEAD_DIM elements each. SLOTS tiles have a place in shared
// memory: while the block computes with one, cp.async fills the next. The pages are looked up one tile before that.
// Tensor cores read the same 16-byte chunk of eight rows at once, and rows of 128 bytes would put the eight into the
// same banks; so chunk c of row r is the one numbered c ^ (r % 8) in its row's place (a swizzle). Steps of 8 rows leave
// r % 8 alone, and a step of s chunks from an even one is address ^ (16 * s): walking costs one instruction. A row's
// place has PLACE_BYTES; the second half of a row of twice as many lies behind the first halves of all rows.
// The file that includes this says KEYS, SLOTS, PLACE_BYTES, THREADS of the block, FETCHERS, how many of them fetch,
// and before_barrier(): what a thread has to do so that, behind the barrier, the others can read what it copied, and
// nobody reads what is written over.
#pragma once
#include "dtype.cuh"
#include "ptx.cuh"

constexpr int PAGE = 16;              // tokens in a block of the cache
constexpr int CHUNKS = HEAD_DIM / 8;  // in a row
constexpr int ROW_BYTES = HEAD_DIM * 2;
constexpr int PLACE_CHUNKS = PLACE_BYTES / 16;
constexpr int KEYS_BYTES = KEYS * ROW_BYTES, TILE_BYTES = 2 * KEYS_BYTES;
constexpr int COPIES = KEYS * CHUNKS / FETCHERS;                     // by one thread for a tile: as many chunks of keys
constexpr int KEYS_A_COPY = FETCHERS / CHUNKS;                       // that all fetchers together copy at one time
constexpr int STRIDE = KEYS_A_COPY > PAGE ? KEYS_A_COPY / PAGE : 1;  // of the pages that one thread copies from
constexpr int PAGES = KEYS / PAGE / STRIDE;                          // of them in a tile
static_assert(HEAD_DIM % 64 == 0, "the swizzle permutes 8 chunks");
static_assert(KEYS % PAGE == 0 && KEYS * CHUNKS % FETCHERS == 0 && KEYS_A_COPY % 8 == 0,
              "whole chunks for each thread");
static_assert(KEYS_A_COPY % PAGE == 0 || PAGE % KEYS_A_COPY == 0, "a thread knows its place in every page");
static_assert(sizeof(scalar_t) == 2, "a chunk of 16 bytes is 8 elements");

// Where a chunk of a row lies among ROWS rows in shared memory.
template <int ROWS>
__device__ __forceinline__ unsigned place(int row, int chunk) {
    const unsigned panel = chunk / PLACE_CHUNKS * (ROWS * PLACE_BYTES);
    return panel + row * PLACE_BYTES + (chunk % PLACE_CHUNKS ^ row % 8) * 16;
}

// Rows are read 16 elements at a time: the address of the d-th, where `at` is that of the first.
template <int ROWS>
__device__ __forceinline__ unsigned further(unsigned at, int d) {
    return (at ^ d * 2 % PLACE_CHUNKS * 16) + d * 2 / PLACE_CHUNKS * (ROWS * PLACE_BYTES);
}

// One thread's share of the tiles: one chunk of the keys `first`, first + KEYS_A_COPY, ... and of their values. Held
// are the kernel's own arguments, which need no registers, and little more.
struct KvTiles {
    const scalar_t* cache;  // (num_pages, num_kv_heads, 2, PAGE, HEAD_DIM)
    const int* tables;      // (num_requests, table_width)
    int table_width, num_kv_heads, request, seq_len;
    unsigned tiles;        // where tile 0 lies in shared memory
    int page[PAGES] = {};  // of the tile to fetch next

    // The last tile may have fewer pages than others; behind them the table may end.
    __device__ __forceinline__ void look_up(int tile) {
        const int* next = tables + (size_t)request * table_width + tile * (KEYS / PAGE);
        const int first = STRIDE > 1 ? threadIdx.x / CHUNKS / PAGE : 0;
        if (THREADS > FETCHERS && threadIdx.x >= FETCHERS) return;
        if ((tile + 1) * KEYS <= seq_len) {
#pragma unroll
            for (int i = 0; i < PAGES; i++) page[i] = __ldg(next + first + i * STRIDE);
        } else if (tile * KEYS < seq_len) {
            const int last = (seq_len - 1) / PAGE - tile * (KEYS / PAGE);
#pragma unroll
            for (int i = 0; i < PAGES; i++) page[i] = __ldg(next + min(first + i * STRIDE, last));
        }
    }

    // Keys from seq_len on become zeros, and so do their values: a weight of 0 times whatever lay there must be 0.
    __device__ __forceinline__ void fetch(int tile) {
        const int first = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        const unsigned slot = tiles + tile % SLOTS * TILE_BYTES + place<KEYS>(first, chunk);
        const int row = blockIdx.x * 2 * PAGE + first % PAGE;  // of a page; blockIdx.x is the key/value head
        const char* mine = reinterpret_cast<const char*>(cache) + row * ROW_BYTES + chunk * 16;
#pragma unroll
        for (int i = 0; i < COPIES && (THREADS == FETCHERS || threadIdx.x < FETCHERS); i++) {
            const unsigned at = page[i * KEYS_A_COPY / PAGE / STRIDE], page_bytes = num_kv_heads * 2 * PAGE * ROW_BYTES;
            const bool valid = tile * KEYS + i * KEYS_A_COPY + first < seq_len;
            const char* from = mine + (size_t)at * page_bytes + i * KEYS_A_COPY % PAGE * ROW_BYTES;
            const unsigned there = slot + i * KEYS_A_COPY * PLACE_BYTES;
            cp_async_16(there, from, valid);
            cp_async_16(there + KEYS_BYTES, from + PAGE * ROW_BYTES, valid);
        }
        cp_async_commit();
    }

    // Start with tile 0. Whatever was copied to shared memory before without a commit belongs to its group.
    __device__ __forceinline__ void begin() {
        look_up(0);
        fetch(0);
        look_up(1);
    }

    // Wait until tile j is there for all threads, and all are done with tile j - SLOTS + 1; fetch tile j + 1, if it is
    // one of the `count`, over that one.
    __device__ __forceinline__ void next(int j, int count) {
        cp_async_wait<0>();
        before_barrier();
        __syncthreads();
        if (j + 1 < count) fetch(j + 1);
        look_up(j + 2);
    }
};
