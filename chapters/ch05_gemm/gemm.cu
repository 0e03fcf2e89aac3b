// chapters/ch05_gemm/gemm.cu: the worked solution of chapter 05. The engine uses cuBLAS, through device.gemm.
//
// out = x @ weight transposed, or out += that: out[m, n] = sum over k of x[m, k] * weight[n, k], for any M, N and K.
// weight is (N, K), as in the checkpoint: both operands run along their rows. Sums are in float. Two rungs.
//
// All kernels: grid (ceil(N / 16), ceil(M / 16)), block (16, 16). Thread (tx, ty) of block (bx, by) owns
// the one element n = 16 * bx + tx, m = 16 * by + ty of out; neighbours in x write neighbours in memory.
// Floor: M * K + N * K elements read, M * N written, 2 * M * N * K operations.
#include "dtype.cuh"

constexpr int TILE = 16;

// The first rung: every thread reads its row of x and its row of weight from global memory.
__device__ float naive_sum(const scalar_t* x,       // (M, K)
                           const scalar_t* weight,  // (N, K)
                           int M, int N, int K, int m, int n) {
    float sum = 0.0f;
    if (m >= M || n >= N) return sum;
    // EXERCISE-BEGIN 5.2 (about 3 lines): the dot product of row m of x and row n of weight
    for (int k = 0; k < K; k++) sum += float(x[(size_t)m * K + k]) * float(weight[(size_t)n * K + k]);
    // EXERCISE-END 5.2
    return sum;
}

// The second rung: the block walks along K in steps of 16. In each step its 256 threads load one tile of x and one of
// weight into shared memory, one element each; then each thread reads 16 elements of both from there. A row of x is so
// read from global memory once for 16 columns of out, and not 16 times. Past the edges a tile holds zeros.
// Shared memory lies in 32 banks, word w in bank w % 32; lanes of a warp that want different words of one bank wait for
// each other. That is what the tile's spare column avoids.
__device__ float tiled_sum(const scalar_t* x,       // (M, K)
                           const scalar_t* weight,  // (N, K)
                           int M, int N, int K, int m, int n) {
    __shared__ float x_tile[TILE][TILE];           // [row of x][k]
    __shared__ float weight_tile[TILE][TILE + 1];  // [row of weight][k]; one column to spare: 16 rows in 16 banks
    int tx = threadIdx.x, ty = threadIdx.y;
    int weight_row = blockIdx.x * TILE + ty;  // the row that this thread loads; it owns column n of out
    float sum = 0.0f;
    for (int first = 0; first < K; first += TILE) {
        int k = first + tx;
        // EXERCISE-BEGIN 5.3 (about 5 lines): load one element of each tile, then add up the tiles' 16 products
        x_tile[ty][tx] = m < M && k < K ? float(x[(size_t)m * K + k]) : 0.0f;
        weight_tile[ty][tx] = weight_row < N && k < K ? float(weight[(size_t)weight_row * K + k]) : 0.0f;
        __syncthreads();  // both tiles are complete
        for (int i = 0; i < TILE; i++) sum += x_tile[ty][i] * weight_tile[tx][i];
        __syncthreads();  // everyone is done with them: the next step may overwrite them
        // EXERCISE-END 5.3
    }
    return sum;
}

extern "C" __global__ void gemm_naive(const scalar_t* x,       // (M, K)
                                      const scalar_t* weight,  // (N, K)
                                      scalar_t* out,           // (M, N)
                                      int M, int N, int K, int add) {
    int n = blockIdx.x * TILE + threadIdx.x, m = blockIdx.y * TILE + threadIdx.y;
    float sum = naive_sum(x, weight, M, N, K, m, n);
    if (m >= M || n >= N) return;
    scalar_t* target = out + (size_t)m * N + n;
    *target = scalar_t(add ? float(*target) + sum : sum);
}

extern "C" __global__ void gemm_tiled(const scalar_t* x,       // (M, K)
                                      const scalar_t* weight,  // (N, K)
                                      scalar_t* out,           // (M, N)
                                      int M, int N, int K, int add) {
    int n = blockIdx.x * TILE + threadIdx.x, m = blockIdx.y * TILE + threadIdx.y;
    float sum = tiled_sum(x, weight, M, N, K, m, n);  // every thread takes part: there are barriers inside
    if (m >= M || n >= N) return;
    scalar_t* target = out + (size_t)m * N + n;
    *target = scalar_t(add ? float(*target) + sum : sum);
}

// The same two with a float result whatever the element type: the logits are compared, and 16 bits make ties of them.
extern "C" __global__ void gemm_naive_float(const scalar_t* x,       // (M, K)
                                            const scalar_t* weight,  // (N, K)
                                            float* out,              // (M, N)
                                            int M, int N, int K, int add) {
    int n = blockIdx.x * TILE + threadIdx.x, m = blockIdx.y * TILE + threadIdx.y;
    float sum = naive_sum(x, weight, M, N, K, m, n);
    if (m >= M || n >= N) return;
    float* target = out + (size_t)m * N + n;
    *target = add ? *target + sum : sum;
}

extern "C" __global__ void gemm_tiled_float(const scalar_t* x,       // (M, K)
                                            const scalar_t* weight,  // (N, K)
                                            float* out,              // (M, N)
                                            int M, int N, int K, int add) {
    int n = blockIdx.x * TILE + threadIdx.x, m = blockIdx.y * TILE + threadIdx.y;
    float sum = tiled_sum(x, weight, M, N, K, m, n);
    if (m >= M || n >= N) return;
    float* target = out + (size_t)m * N + n;
    *target = add ? *target + sum : sum;
}
