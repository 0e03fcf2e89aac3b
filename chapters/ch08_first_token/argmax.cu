// chapters/ch08_first_token/argmax.cu: the worked solution of chapter 08. The engine runs kernels/argmax.cu.
//
// The id of the largest logit of each row; of equal ones the lowest id, so that every machine says the same token.
//
// Grid (num_rows), block a power of two: block r owns row r, its thread t the ids t, t + blockDim.x ... Each thread
// finds the best of its own, then a tree in shared memory the best of those: chapter 03's, with pairs in place of sums.
#include <math_constants.h>

extern "C" __global__ void argmax(const float* logits,  // (num_rows, vocab_size)
                                  int* ids,             // (num_rows,) out
                                  int vocab_size) {
    __shared__ float best[1024];
    __shared__ int best_id[1024];
    int t = threadIdx.x;
    logits += (size_t)blockIdx.x * vocab_size;

    best[t] = -CUDART_INF_F;
    best_id[t] = t < vocab_size ? t : 0;
    for (int id = t; id < vocab_size; id += blockDim.x) {  // ids rise, so an equal one later never replaces the first
        if (logits[id] > best[t]) {
            best[t] = logits[id];
            best_id[t] = id;
        }
    }
    __syncthreads();
    for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
        if (t < stride) {
            // EXERCISE-BEGIN 8.2 (about 6 lines): keep the better of entries t and t + stride; the lower id in a tie
            bool larger = best[t + stride] > best[t];
            bool tie = best[t + stride] == best[t] && best_id[t + stride] < best_id[t];
            if (larger || tie) {
                best[t] = best[t + stride];
                best_id[t] = best_id[t + stride];
            }
            // EXERCISE-END 8.2
        }
        __syncthreads();
    }
    if (t == 0) ids[blockIdx.x] = best_id[0];
}
