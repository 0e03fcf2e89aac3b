// kernels/decode_linear.cu: out += x @ weight transposed for up to 8 rows: the output and down products of a decode
// step, added to the residual stream.
//
// requires: sm_80, 16-bit SCALAR; K a multiple of 64, N of 16
//
// Grid: any number of blocks, of THREADS threads, that share the tiles of 16 outputs as gemv.cuh says; dynamic shared
// memory: the queues, the warps' sums. Thread 16 * n + r adds up output r of each tile for row n, and reads what it
// adds to beforehand.
// Bytes: the weights once, 2 * N * K; x is read by every block, out of L2. For Llama-3.2-1B at 4.22 TB/s that is 2.0 us
// for the output product and 8.0 for down. Measured on an H200 as part of a layer (gemv.cuh): 36.9 us, 8 rows 40.3.
#include "gemv.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) decode_linear(const scalar_t* x,       // (rows, K)
                                                                    const scalar_t* weight,  // (N, K)
                                                                    scalar_t* out,           // (rows, N)
                                                                    int rows, int N, int K) {
    extern __shared__ __align__(16) unsigned char shared[];
    uint4 *queue = reinterpret_cast<uint4*>(shared), *x_queue = queue + QUEUE;
    float* partial = reinterpret_cast<float*>(x_queue + QueuedRows::parts(rows));
    Stream<NextRows, QueuedRows> stream(weight, K, N / TILE, queue, NextRows(), QueuedRows(x, x_queue, rows, K));
    stream.begin();
    wait_for_previous_kernel();
    stream.x.begin(stream.taken, K / CHUNK);
    const int n = threadIdx.x / TILE, r = threadIdx.x % TILE;
    for (int turn = 0, tile = blockIdx.x; tile < N / TILE; turn++, tile += gridDim.x) {
        scalar_t* to = out + (size_t)n * N + tile * TILE + r;
        const float residual = n < rows ? float(*to) : 0.0f;
        float sum[4] = {};
        stream.multiply(sum);
        const float total = add_warps(partial, sum, turn, rows);
        if (n < rows) *to = scalar_t(residual + total);
    }
}
