// kernels/decode_mlp.cu: norm, gate and up product, SiLU(gate) * up for up to 8 rows: the first half of a decode step's
// MLP.
//
// requires: sm_80, 16-bit SCALAR; K a multiple of 64, width of 8
//
// Grid: any number of blocks, of THREADS threads; dynamic shared memory: the queue, the normalised rows, the gain. A
// tile of gemv.cuh is 8 rows of gate and the 8 rows of up that they meet, so thread 16 * n + r has gate r of row n, and
// the lane 8 further its up.
// Bytes: the weights once, 2 * 2 * width * K: 15.9 us for Llama-3.2-1B at 4.22 TB/s; measured on an H200, one after
// another: 17.6 (8 rows: 20.8, of which the norm is 4).
#include "norm_rows.cuh"

struct Rows {
    int apart;  // from a row of gate to its row of up
    __device__ __forceinline__ int first(int tile) const { return tile * (TILE / 2); }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    decode_mlp(const scalar_t* x,       // (rows, K)
               const scalar_t* gain,    // (K,)
               const scalar_t* weight,  // (2 * width, K): gate, then up
               scalar_t* out,           // (rows, width)
               int rows, int width, int K, float eps) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float partial[2][WARPS][MAX_ROWS * SUM_STRIDE];
    const int tiles = width / (TILE / 2);
    Stream<Rows, NormedRows> stream = begin_normed(shared, x, nullptr, gain, weight, rows, K, tiles, Rows{width}, eps);
    const int n = threadIdx.x / TILE, r = threadIdx.x % TILE;
    for (int turn = 0, tile = blockIdx.x; tile < tiles; turn++, tile += gridDim.x) {
        float sum[4] = {};
        stream.multiply(sum);
        const float gate = add_warps(partial, sum, turn), up = __shfl_xor_sync(~0u, gate, TILE / 2);
        if (n < rows && r < TILE / 2)
            out[(size_t)n * width + tile * (TILE / 2) + r] = scalar_t(gate / (1.0f + expf(-gate)) * up);
    }
}
