// kernels/linear_mma.cu: the product of batch-invariant mode on tensor cores, for 16-bit elements; linear.cu is for all.
//
// requires: sm_80, 16-bit SCALAR
//
// out = x @ weight transposed, or out += that: out[m, n] = sum over k of x[m, k] * weight[n, k], for any M and N, and K
// a multiple of 8; x and weight begin at multiples of 16 bytes.
// K is cut into slices of 32, and warp w of a block's four takes slices w, w + 4, ...: for each element it adds up
// theirs in this order, 16 products an instruction, and the four sums are added in the order of the warps. Nothing of
// that depends on M or on the tile, so the bits of a row do not depend on the rows beside it.
//
// Grid (ceil(N / COLUMNS), ceil(M / ROWS)), block 128. A block computes a tile of ROWS x COLUMNS elements, each of its
// warps the whole tile over its slices, which come by cp.async into memory of its own: warps meet only at the end.
//   16 x 16   up to 16 rows: many blocks, so that the weights come at the memory's speed
//   64 x 32   up to 128
//   64 x 64   more: each value read from shared memory is used 64 times
// Floor: M * K + N * K elements read, M * N written, 2 * M * N * K operations. For Llama-3.2-1B's gate_up that is 16 us
// at 4.22 TB/s up to some 256 rows; measured on an H200: 22.5 us (1 row), 39.6 (32), 103 (256).
#include "dtype.cuh"
#include "ptx.cuh"

#ifndef ROWS  // the tile is chosen when the file is compiled: multiples of 16
#define ROWS 64
#define COLUMNS 64
#endif

constexpr int WARPS = 4, SLICE = 32, STAGES = 3;
constexpr int ROW_BYTES = SLICE * 2, CHUNKS = ROW_BYTES / 16;

// Where 16 bytes of a row of a slice lie: chunks change places from row to row, so that ldmatrix, which reads one chunk
// of eight rows, finds them in different banks.
__device__ __forceinline__ unsigned swizzled(int row, int chunk) {
    return row * ROW_BYTES + (chunk ^ (row / 2 % CHUNKS)) * 16;
}

// Begin to copy LENGTH rows of a slice, by one warp; zeros past the edges.
template <int LENGTH>
__device__ __forceinline__ void fetch(unsigned to, const scalar_t* matrix, int first_row, int rows, int first_k,
                                      int K) {
    for (int i = threadIdx.x % 32; i < LENGTH * CHUNKS; i += 32) {
        const int r = i / CHUNKS, chunk = i % CHUNKS, row = first_row + r, k = first_k + chunk * 8;
        const bool valid = row < rows && k < K;
        cp_async_16(to + swizzled(r, chunk), valid ? matrix + (size_t)row * K + k : matrix, valid);
    }
}

// One warp's sums over its slices, of a tile of out.
struct WarpTile {
    float sum[ROWS / 16][COLUMNS / 8][4] = {};

    // The products of one slice, whose rows of x and of the weight lie at these places.
    __device__ __forceinline__ void add(unsigned x, unsigned weight) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int step = 0; step < SLICE / 16; step++) {
            unsigned a[ROWS / 16][4];
#pragma unroll
            for (int i = 0; i < ROWS / 16; i++) {
                ldmatrix_x4(a[i], x + swizzled(16 * i + lane % 16, 2 * step + lane / 16));
            }
#pragma unroll
            for (int j = 0; j < COLUMNS / 16; j++) {
                unsigned b[4];
                const int row = 16 * j + lane / 16 * 8 + lane % 8;
                ldmatrix_x4(b, weight + swizzled(row, 2 * step + lane / 8 % 2));
#pragma unroll
                for (int i = 0; i < ROWS / 16; i++) {
                    mma_16x8x16<scalar_t>(sum[i][2 * j], a[i], b[0], b[1]);
                    mma_16x8x16<scalar_t>(sum[i][2 * j + 1], a[i], b[2], b[3]);
                }
            }
        }
    }

    // to: (ROWS, COLUMNS).
    __device__ __forceinline__ void store(float* to) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    to[(16 * i + e / 2 * 8 + lane / 4) * COLUMNS + 8 * j + lane % 4 * 2 + e % 2] = sum[i][j][e];
                }
    }
};

// Result: scalar_t or float. Dynamic shared memory: WARPS * STAGES * (ROWS + COLUMNS) * ROW_BYTES.
template <typename Result>
__device__ __forceinline__ void multiply(const scalar_t* x,       // (M, K)
                                         const scalar_t* weight,  // (N, K)
                                         Result* out,             // (M, N)
                                         int M, int N, int K, int add) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int STAGE_BYTES = (ROWS + COLUMNS) * ROW_BYTES;
    static_assert(ROWS * COLUMNS * 4 <= STAGES * STAGE_BYTES, "the sums take the place of the slices");
    const int warp = threadIdx.x / 32, first_row = blockIdx.y * ROWS, first_column = blockIdx.x * COLUMNS;
    const unsigned stages = shared_address(shared) + warp * STAGES * STAGE_BYTES;
    const int count = (K + WARPS * SLICE - 1 - warp * SLICE) / (WARPS * SLICE);  // of this warp's slices

    const auto begin = [&](int i) {
        const unsigned to = stages + i % STAGES * STAGE_BYTES;
        const int k = (i * WARPS + warp) * SLICE;
        if (i < count) {
            fetch<ROWS>(to, x, first_row, M, k, K);
            fetch<COLUMNS>(to + ROWS * ROW_BYTES, weight, first_column, N, k, K);
        }
        cp_async_commit();
    };
    WarpTile tile;
    for (int i = 0; i < STAGES - 1; i++) begin(i);
    for (int i = 0; i < count; i++) {
        cp_async_wait<STAGES - 2>();
        __syncwarp();  // slice i is there for all lanes, and all are done with slice i - 1
        begin(i + STAGES - 1);
        const unsigned at = stages + i % STAGES * STAGE_BYTES;
        tile.add(at, at + ROWS * ROW_BYTES);
    }
    cp_async_wait<0>();
    __syncthreads();
    float* sums = reinterpret_cast<float*>(shared);  // (WARPS, ROWS, COLUMNS)
    tile.store(sums + warp * ROWS * COLUMNS);
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += 32 * WARPS) {
        const int m = first_row + i / COLUMNS, n = first_column + i % COLUMNS;
        if (m >= M || n >= N) continue;
        float sum = sums[i];
        for (int w = 1; w < WARPS; w++) sum += sums[w * ROWS * COLUMNS + i];
        Result* target = out + (size_t)m * N + n;
        *target = Result(add ? float(*target) + sum : sum);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_mma(const scalar_t* x,       // (M, K)
                                                                    const scalar_t* weight,  // (N, K)
                                                                    scalar_t* out,           // (M, N)
                                                                    int M, int N, int K, int add) {
    multiply(x, weight, out, M, N, K, add);
}

// The same with a float result, for the logits: 16 bits make ties of them.
extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_mma_float(const scalar_t* x,       // (M, K)
                                                                          const scalar_t* weight,  // (N, K)
                                                                          float* out,              // (M, N)
                                                                          int M, int N, int K, int add) {
    multiply(x, weight, out, M, N, K, add);
}
