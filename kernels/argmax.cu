// kernels/argmax.cu: what the engine runs for greedy decoding. The lesson's is in chapters/ch08_first_token.
//
// ids[r] = the id with the largest logit of row r; of equal logits the lowest id. NaN never wins; a row of nothing but
// NaN gives 0, so that an id always names a token.
// One block a row, blockDim.x a power of two, at most 1,024; thread t owns ids t, t + blockDim.x, ..., then the block
// halves the candidates until one is left.
// Bytes: each logit once, 4 * R * vocabulary.
#include <math_constants.h>

__device__ __forceinline__ bool better(float a, int id_a, float b, int id_b) {
    return a > b || (a == b && id_a < id_b);
}

extern "C" __global__ void argmax(const float* logits,  // (R, vocabulary)
                                  int* ids,             // (R,)
                                  int vocabulary) {
    __shared__ float best[1024];
    __shared__ int best_id[1024];
    const float* row = logits + (size_t)blockIdx.x * vocabulary;
    const int t = threadIdx.x;

    float value = -CUDART_INF_F;
    int id = vocabulary;  // nothing yet: loses against every -inf
    for (int i = t; i < vocabulary; i += blockDim.x) {
        if (better(row[i], i, value, id)) {
            value = row[i];
            id = i;
        }
    }
    best[t] = value;
    best_id[t] = id;
    __syncthreads();
    for (int stride = blockDim.x / 2; stride > 0; stride /= 2) {
        if (t < stride && better(best[t + stride], best_id[t + stride], best[t], best_id[t])) {
            best[t] = best[t + stride];
            best_id[t] = best_id[t + stride];
        }
        __syncthreads();
    }
    if (t == 0) ids[blockIdx.x] = best_id[0] < vocabulary ? best_id[0] : 0;
}
