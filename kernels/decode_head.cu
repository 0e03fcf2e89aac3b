// kernels/decode_head.cu: the last norm and the vocabulary product of up to 8 wanted rows: logits.
//
// requires: sm_80, 16-bit SCALAR; K a multiple of 64, the vocabulary of 16
//
// Grid: any number of blocks, of THREADS threads; dynamic shared memory: the queue, the prepared rows, the warps' sums.
// Thread 16 * n + r adds up logit r of each tile of gemv.cuh for row n.
// Bytes: the weights once, 2 * vocabulary * K: 124 us for Llama-3.2-1B at 4.22 TB/s; measured on an H200 at the end of
// a step: 125 us, 8 rows 132.
#include "norm_rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) decode_head(const scalar_t* x,       // (T, K)
                                                                  const int* wanted,       // (rows,), each in [0, T)
                                                                  const scalar_t* gain,    // (K,)
                                                                  const scalar_t* weight,  // (vocabulary, K)
                                                                  float* logits,           // (rows, vocabulary)
                                                                  int rows, int vocabulary, int K, float eps) {
    extern __shared__ __align__(16) unsigned char shared[];
    const NormedPlaces places(shared, rows, K);
    Norm norm(gain, wanted, rows, K);
    Stream<NextRows, SharedRows> stream(weight, K, vocabulary / TILE, places.queue, NextRows(),
                                        SharedRows(places.rows, rows, prepared_stride(K)));
    stream.begin();
    wait_for_previous_kernel();
    norm.prepare(places, x, eps);
    const int n = threadIdx.x / TILE, r = threadIdx.x % TILE;
    for (int turn = 0, tile = blockIdx.x; tile < vocabulary / TILE; turn++, tile += gridDim.x) {
        float sum[4] = {};
        stream.multiply(sum);
        const float total = norm.scale * add_warps(places.partial, sum, turn, rows);
        if (n < rows) logits[(size_t)n * vocabulary + tile * TILE + r] = total;
    }
}
