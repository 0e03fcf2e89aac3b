// kernels/gemv.cuh: a matrix times up to 8 rows of x, each weight read once for all of them. The part that decode_*.cu
// share.
//
// requires: sm_80, 16-bit SCALAR
//
// With so few rows a product is a read of its weights, and everything here serves that read. A tile is 16 rows of
// weights, the left operand of mma.sync; the rows of x are the right one, and columns of it that have no row are never
// looked at. Block b takes tiles b, b + gridDim.x, ...; its warps share the columns, a chunk of 64 in turn, 128 bytes
// of each row. Columns may be added up in any order that both operands share, so lane (g, t) of a warp (ptx.cuh) takes
// of each half of a chunk the 8 neighbours 8t, 8t+1, ..., 16 bytes, of weight rows g and g+8 and of row g of x.
//
// Each lane copies what it will need itself into a queue of its own in shared memory, DEPTH chunks ahead, over the ends
// of tiles: nobody else looks at it, so nobody waits, and 64 KiB a block are on their way at any time. The queue is
// filled with weights before the kernel waits for the one before it (wait_for_previous_kernel), so that they come in
// while that one ends.
// A launch has one block a multiprocessor, and so much shared memory that no second one fits: where two do, steps take
// up to a fifth longer, it seems because the next kernel's blocks go two by two to the first multiprocessors that have
// room, and others get none.
// A row of the result depends on no other row: not on their number, nor on what they hold.
// Measured on an H200, Llama-3.2-1B's shape in bfloat16: a layer, these kernels and paged_decode.cu at 128 keys, takes
// 36.9 us for one row and 40.3 for 8, where its weights at 4.22 TB/s are 28.8.
#pragma once
#include "dtype.cuh"
#include "ptx.cuh"
static_assert(sizeof(scalar_t) == 2, "16 bytes are 8 columns");

constexpr int WARPS = 16, THREADS = 32 * WARPS;
constexpr int MAX_ROWS = 8;  // of x
constexpr int TILE = 16;     // weight rows
constexpr int PIECES = 2;    // of a chunk, of 32 columns: 8 for each of the four lanes that share a weight row
constexpr int CHUNK = 32 * PIECES;
constexpr int DEPTH = 2;                        // chunks of a warp on their way
constexpr int PARTS = 2 * PIECES;               // of a chunk's weights, 16 bytes a lane
constexpr int QUEUE = DEPTH * PARTS * THREADS;  // a block's weights on their way, in parts
constexpr int SUM_STRIDE = 20;                  // of 16 sums: the lanes of a warp write to different banks

__device__ __forceinline__ int warp_id() { return threadIdx.x / 32; }
__device__ __forceinline__ int lane_g() { return threadIdx.x % 32 / 4; }
__device__ __forceinline__ int lane_t() { return threadIdx.x % 4; }

// Where a warp is: a chunk of a tile, and the slot of the queue that it goes through.
struct Cursor {
    int tile, chunk, slot;

    __device__ __forceinline__ Cursor() : tile(blockIdx.x), chunk(warp_id()), slot(0) {}
    __device__ __forceinline__ void advance(int chunks) {
        slot = (slot + 1) % DEPTH;
        chunk += WARPS;
        if (chunk >= chunks) chunk = warp_id(), tile += gridDim.x;
    }
};

// The right operand out of rows that the block has prepared (norm_rows.cuh).
struct SharedRows {
    const uint4* rows;  // (rows, stride), in shared memory

    __device__ __forceinline__ SharedRows(const uint4* rows, int count, int stride)
        : rows(rows + min(lane_g(), count - 1) * stride + lane_t()) {}
    __device__ __forceinline__ void ask(int, int) const {}
    __device__ __forceinline__ uint4 take(int, int chunk, int i) const { return rows[chunk * (CHUNK / 8) + 4 * i]; }
};

// The right operand straight from x, through a queue of its own beside the weights that it meets.
struct QueuedRows {
    const scalar_t* x;  // (rows, K), at this lane's row and columns
    uint4* queue;       // (DEPTH, PIECES, WARPS, rows, 4), in shared memory, at this lane
    int stride;         // from one piece to the next
    bool mine;          // this lane has a row; otherwise zeros, which cost no read

    __device__ __forceinline__ QueuedRows(const scalar_t* x, uint4* queue, int rows, int K)
        : x(x + (size_t)min(lane_g(), rows - 1) * K + lane_t() * 8),
          queue(queue + warp_id() * rows * 4 + threadIdx.x % 32),
          stride(WARPS * rows * 4),
          mine(lane_g() < rows) {}
    static __device__ __forceinline__ int parts(int rows) { return DEPTH * PIECES * WARPS * rows * 4; }

    // What the chunks in the queue need, through registers: copies would come behind all the weights on their way.
    __device__ __forceinline__ void begin(Cursor at, int chunks) const {
        uint4 v[DEPTH][PIECES];
#pragma unroll
        for (int s = 0; s < DEPTH; s++, at.advance(chunks))
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                if (at.chunk < chunks) v[s][i] = *reinterpret_cast<const uint4*>(x + at.chunk * CHUNK + 32 * i);
#pragma unroll
        for (int s = 0; s < DEPTH; s++)
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                if (mine) queue[(s * PIECES + i) * stride] = v[s][i];
    }
    __device__ __forceinline__ void ask(int slot, int chunk) const {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            if (mine)
                cp_async_16(shared_address(queue + (slot * PIECES + i) * stride), x + chunk * CHUNK + 32 * i, true);
    }
    __device__ __forceinline__ uint4 take(int slot, int, int i) const {
        return mine ? queue[(slot * PIECES + i) * stride] : uint4{};
    }
};

// Where a tile's rows lie: first(tile) + r and, the other half of them, first(tile) + apart + r, r < 8. Here the 16
// rows follow one another; an epilogue that needs two rows in one warp has a struct of its own.
struct NextRows {
    static constexpr int apart = TILE / 2;
    __device__ __forceinline__ int first(int tile) const { return tile * TILE; }
};

// A block's weights on their way. K is a multiple of CHUNK.
template <class Rows, class X>
struct Stream {
    const scalar_t* weight;  // (N, K)
    int K, tiles;
    uint4* queue;  // (DEPTH, PARTS, THREADS), in shared memory: neighbours in a warp have neighbouring places
    Rows rows;
    X x;
    Cursor asked, taken;

    __device__ __forceinline__ Stream(const scalar_t* weight, int K, int tiles, uint4* queue, Rows rows, X x)
        : weight(weight), K(K), tiles(tiles), queue(queue + threadIdx.x), rows(rows), x(x) {}

    __device__ __forceinline__ bool has_more(const Cursor& at) const {
        return at.tile < tiles && at.chunk < K / CHUNK;  // a narrow matrix has nothing for the last warps
    }
    __device__ __forceinline__ uint4* part(int slot, int p) const { return queue + (slot * PARTS + p) * THREADS; }
    __device__ __forceinline__ void ask_weights(const Cursor& at) {
        const scalar_t* from = weight + (size_t)(rows.first(at.tile) + lane_g()) * K + at.chunk * CHUNK + lane_t() * 8;
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            cp_async_16_of_128(shared_address(part(at.slot, p)),
                               from + p / PIECES * (size_t)rows.apart * K + p % PIECES * 32);
    }
    // Fill the queue with what no kernel writes; then the next kernel may do the same.
    __device__ __forceinline__ void begin() {
#pragma unroll 1
        for (int i = 0; i < DEPTH; i++) {
            if (has_more(asked)) ask_weights(asked);
            cp_async_commit();
            asked.advance(K / CHUNK);
        }
        launch_next_kernel();
    }
    // sum += this warp's part of the next tile times x. Two sums: half the wait for one product before the next.
    __device__ __forceinline__ void multiply(float (&sum)[4]) {
        float other[4] = {};
#pragma unroll 1  // short code: a step has no time to fetch it
        for (int chunk = warp_id(); chunk < K / CHUNK; chunk += WARPS) {
            cp_async_wait<DEPTH - 1>();
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                const uint4 low = *part(taken.slot, i), high = *part(taken.slot, PIECES + i);
                const uint4 right = x.take(taken.slot, chunk, i);
                mma_16x8x16<scalar_t>(sum, {low.x, high.x, low.y, high.y}, right.x, right.y);
                mma_16x8x16<scalar_t>(other, {low.z, high.z, low.w, high.w}, right.z, right.w);
            }
            taken.advance(K / CHUNK);
            if (has_more(asked)) {
                ask_weights(asked);
                x.ask(asked.slot, asked.chunk);
            }
            cp_async_commit();
            asked.advance(K / CHUNK);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) sum[e] += other[e];
    }
};

// A tile's sums, added up over the warps. Threads below 16 * rows: thread 16 * n + r receives row r of the tile times
// row n of x, and the same warp has row r ^ 8. `turn` counts the tiles: while one is read, the next is written
// elsewhere. partial: (2, WARPS, rows, SUM_STRIDE), in shared memory.
__device__ __forceinline__ float add_warps(float* partial, const float (&sum)[4], int turn, int rows) {
    const int stride = rows * SUM_STRIDE;
    partial += turn % 2 * WARPS * stride;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int n = 2 * lane_t() + e % 2;
        if (n < rows) partial[warp_id() * stride + n * SUM_STRIDE + lane_g() + e / 2 * 8] = sum[e];
    }
    __syncthreads();
    float total = 0.0f;
    if (threadIdx.x < TILE * rows)
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            total += partial[w * stride + threadIdx.x / TILE * SUM_STRIDE + threadIdx.x % TILE];
    return total;
}
