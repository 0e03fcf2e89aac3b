// kernels/decode_mlp.cu: norm, gate and up product, SiLU(gate) * up for up to 8 rows: the first half of a decode step's
// MLP.
//
// requires: sm_80, 16-bit SCALAR; K a multiple of 64, width of 8
//
// Grid: any number of blocks, of THREADS threads; dynamic shared memory: the queue, the prepared rows, the warps' sums.
// A tile of gemv.cuh is 8 rows of gate and the 8 rows of up that they meet, so thread 16 * n + r has gate r of row n,
// and the lane 8 further its up.
// Bytes: the weights once, 2 * 2 * width * K: 15.9 us for Llama-3.2-1B at 4.22 TB/s. Measured on an H200 as part of a
// layer (gemv.cuh): 36.9 us, 8 rows 40.3.
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
    const int tiles = width / (TILE / 2);
    const NormedPlaces places(shared, rows, K);
    Norm norm(gain, nullptr, rows, K);
    Stream<Rows, SharedRows> stream(weight, K, tiles, places.queue, Rows{width},
                                    SharedRows(places.rows, rows, prepared_stride(K)));
    stream.begin();
    wait_for_previous_kernel();
    norm.prepare(places, x, eps);
    const int n = threadIdx.x / TILE, r = threadIdx.x % TILE;
    for (int turn = 0, tile = blockIdx.x; tile < tiles; turn++, tile += gridDim.x) {
        float sum[4] = {};
        stream.multiply(sum);
        const float gate = norm.scale * add_warps(places.partial, sum, turn, rows);
        const float up = __shfl_xor_sync(~0u, gate, TILE / 2);
        if (n < rows && r < TILE / 2)
            out[(size_t)n * width + tile * (TILE / 2) + r] = scalar_t(gate / (1.0f + expf(-gate)) * up);
    }
}
