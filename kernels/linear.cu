// kernels/linear.cu: the product of batch-invariant mode. Otherwise the engine uses cuBLAS, through device.gemm; the
// lesson's is chapters/ch05_gemm/gemm.cu.
//
// out = x @ weight transposed, or out += that: out[m, n] = sum over k of x[m, k] * weight[n, k], for any M, N and K.
// Every sum is one chain of fused multiply-adds in float, k = 0, 1, ..., K - 1, by one thread: no split of K, and no
// tile that is chosen by M changes that order, so the bits of a row do not depend on the rows beside it. A library
// promises no such thing: it splits K, or takes another tile, when M is another.
//
// Grid (ceil(N / tile columns), ceil(M / tile rows)), block (16, 16). A block computes a tile of out, a thread
// ROWS * COLUMNS elements of it, 16 apart, so that neighbours in x write neighbours. Along K the block goes in steps of
// TILE_K: all threads load both tiles into shared memory, then each adds up its own products out of it.
//   linear        64 x 64 elements a block, 4 x 4 a thread: each value read from shared memory is used four times
//   linear_short  16 x 32 elements a block, 1 x 2 a thread: for 16 rows at most, where a tall tile is mostly empty
// The two give the same bits: fmaf leaves the compiler no choice of what to round.
// Floor: M * K + N * K elements read, M * N written, 2 * M * N * K operations. For 32 rows and Llama-3.2-1B's gate_up
// in bfloat16 that is 16 us at 4.22 TB/s; measured on an H200: 327 us, since it uses no tensor core.
#include "dtype.cuh"

constexpr int SIDE = 16;    // threads of a block in x and in y
constexpr int TILE_K = 64;  // k of a step: the longer, the fewer barriers

// tile[k][r] = matrix[first_row + r, first_k + k], 0 past the edges. LENGTH rows. A warp reads 32 neighbours of a row;
// one column to spare, so that its lanes, each with its own k, write to 32 banks.
template <int LENGTH>
__device__ __forceinline__ void load_tile(float (*tile)[LENGTH + 1], const scalar_t* matrix, int first_row, int rows,
                                          int first_k, int K) {
    const int thread = threadIdx.y * SIDE + threadIdx.x;
    const int k = first_k + thread % TILE_K;
    for (int r = thread / TILE_K; r < LENGTH; r += SIDE * SIDE / TILE_K) {
        const int row = first_row + r;
        tile[thread % TILE_K][r] = row < rows && k < K ? float(matrix[(size_t)row * K + k]) : 0.0f;
    }
}

// ROWS, COLUMNS: of out, for each thread. Result: scalar_t or float.
template <int ROWS, int COLUMNS, typename Result>
__device__ __forceinline__ void multiply(const scalar_t* x,       // (M, K)
                                         const scalar_t* weight,  // (N, K)
                                         Result* out,             // (M, N)
                                         int M, int N, int K, int add) {
    __shared__ float x_tile[TILE_K][SIDE * ROWS + 1];
    __shared__ float weight_tile[TILE_K][SIDE * COLUMNS + 1];
    const int first_row = blockIdx.y * SIDE * ROWS, first_column = blockIdx.x * SIDE * COLUMNS;
    const bool has_rows = first_row + threadIdx.y < M;  // a thread without any only loads: most do at M = 1

    float sum[ROWS][COLUMNS] = {};
    for (int first_k = 0; first_k < K; first_k += TILE_K) {
        load_tile<SIDE * ROWS>(x_tile, x, first_row, M, first_k, K);
        load_tile<SIDE * COLUMNS>(weight_tile, weight, first_column, N, first_k, K);
        __syncthreads();  // both tiles are complete
        for (int k = 0; k < (has_rows ? TILE_K : 0); k++) {
            float w[COLUMNS];
            for (int j = 0; j < COLUMNS; j++) w[j] = weight_tile[k][threadIdx.x + SIDE * j];
            for (int i = 0; i < ROWS; i++) {
                const float value = x_tile[k][threadIdx.y + SIDE * i];
                for (int j = 0; j < COLUMNS; j++) sum[i][j] = fmaf(value, w[j], sum[i][j]);
            }
        }
        __syncthreads();  // everyone is done with them: the next step may overwrite them
    }

    for (int i = 0; i < ROWS; i++) {
        const int m = first_row + threadIdx.y + SIDE * i;
        for (int j = 0; j < COLUMNS; j++) {
            const int n = first_column + threadIdx.x + SIDE * j;
            if (m >= M || n >= N) continue;
            Result* target = out + (size_t)m * N + n;
            *target = Result(add ? float(*target) + sum[i][j] : sum[i][j]);
        }
    }
}

extern "C" __global__ void linear(const scalar_t* x,       // (M, K)
                                  const scalar_t* weight,  // (N, K)
                                  scalar_t* out,           // (M, N)
                                  int M, int N, int K, int add) {
    multiply<4, 4>(x, weight, out, M, N, K, add);
}

extern "C" __global__ void linear_short(const scalar_t* x,       // (M, K)
                                        const scalar_t* weight,  // (N, K)
                                        scalar_t* out,           // (M, N)
                                        int M, int N, int K, int add) {
    multiply<1, 2>(x, weight, out, M, N, K, add);
}

// The same two with a float result whatever the element type, for the logits: 16 bits make ties of them.
extern "C" __global__ void linear_float(const scalar_t* x,       // (M, K)
                                        const scalar_t* weight,  // (N, K)
                                        float* out,              // (M, N)
                                        int M, int N, int K, int add) {
    multiply<4, 4>(x, weight, out, M, N, K, add);
}

extern "C" __global__ void linear_short_float(const scalar_t* x,       // (M, K)
                                              const scalar_t* weight,  // (N, K)
                                              float* out,              // (M, N)
                                              int M, int N, int K, int add) {
    multiply<1, 2>(x, weight, out, M, N, K, add);
}
