// kernels/kv_tiles.cuh: keys and values on their way from the pages of the cache into shared memory, a tile ahead.
//
// A tile is KEYS keys, then their KEYS values, a row of HEAD_DIM elements each. Two tiles have a place in shared
// memory: while the block computes with one, cp.async fills the other. The pages are looked up one tile before that.
// ldmatrix reads the same 16-byte chunk of eight rows at once, and rows of 128 or 256 bytes would put the eight into
// the same banks; so chunk c of row r lies at place c ^ (r % 8) of its row (a swizzle). Steps of 8 rows leave r % 8
// alone, and a step of s chunks from an even one is address ^ (16 * s): walking costs one instruction.
#pragma once
#include "dtype.cuh"
#include "ptx.cuh"

constexpr int PAGE = 16;                        // tokens in a block of the cache
constexpr int KEYS = HEAD_DIM == 64 ? 64 : 32;  // by the registers that a fully unrolled tile needs
constexpr int THREADS = 128;                    // of the block that fetches
constexpr int CHUNKS = HEAD_DIM / 8;            // in a row
constexpr int PAGES = KEYS / PAGE;              // of a tile
constexpr int ROW_BYTES = HEAD_DIM * 2;
constexpr int KEYS_BYTES = KEYS * ROW_BYTES, TILE_BYTES = 2 * KEYS_BYTES;
constexpr int COPIES = KEYS * CHUNKS / THREADS;  // of keys, by one thread for one tile
constexpr int KEYS_A_COPY = THREADS / CHUNKS;    // that all threads copy together
static_assert(KEYS % PAGE == 0 && KEYS * CHUNKS % THREADS == 0 && KEYS_A_COPY % 8 == 0, "whole chunks for each thread");
static_assert(sizeof(scalar_t) == 2, "a chunk of 16 bytes is 8 elements");

__device__ __forceinline__ unsigned swizzled(int row, int chunk) { return row * ROW_BYTES + (chunk ^ (row % 8)) * 16; }

// One thread's share of the tiles: one chunk of the keys `first`, first + KEYS_A_COPY, ... and of their values.
struct KvTiles {
    const char* kv;        // the cache at this key/value head and the thread's place in a page
    const int* table;      // the request's pages, in order
    unsigned page_stride;  // bytes from one page of the cache to the next
    unsigned to;           // where the thread's first chunk goes in shared memory, in tile 0
    int seq_len;           // of the request
    int left;              // keys from the thread's first one on
    int page[PAGES] = {};  // of the tile to fetch next

    __device__ __forceinline__ KvTiles(const scalar_t* cache, const int* table, int seq_len, int kv_head,
                                       int num_kv_heads, unsigned tiles)
        : table(table), seq_len(seq_len) {
        const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS;
        left = seq_len - first;
        page_stride = num_kv_heads * 2 * PAGE * ROW_BYTES;
        kv = reinterpret_cast<const char*>(cache) + (kv_head * 2 * PAGE + first % PAGE) * ROW_BYTES + chunk * 16;
        to = tiles + swizzled(first, chunk);
    }

    // The last tile may have fewer pages than others; behind them the table may end.
    __device__ __forceinline__ void look_up(int tile) {
        const int* next = table + tile * (KEYS / PAGE);
        if ((tile + 1) * KEYS <= seq_len) {
#pragma unroll
            for (int i = 0; i < PAGES; i++) page[i] = __ldg(next + i);
        } else if (tile * KEYS < seq_len) {
            const int last = (seq_len - 1) / PAGE - tile * (KEYS / PAGE);
#pragma unroll
            for (int i = 0; i < PAGES; i++) page[i] = __ldg(next + min(i, last));
        }
    }

    // Keys from seq_len on become zeros, and so do their values: a weight of 0 times whatever lay there must be 0.
    __device__ __forceinline__ void fetch(int tile) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const bool valid = tile * KEYS + i * KEYS_A_COPY < left;
            const char* from =
                kv + (size_t)(unsigned)page[i * KEYS_A_COPY / PAGE] * page_stride + i * KEYS_A_COPY % PAGE * ROW_BYTES;
            const unsigned there = to + tile % 2 * TILE_BYTES + i * KEYS_A_COPY * ROW_BYTES;
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

    // Wait until tile j is there for all threads, and all are done with tile j - 1; fetch the next of `count` over it.
    __device__ __forceinline__ void next(int j, int count) {
        cp_async_wait<0>();
        __syncthreads();
        if (j + 1 < count) fetch(j + 1);
        look_up(j + 2);
    }
};
