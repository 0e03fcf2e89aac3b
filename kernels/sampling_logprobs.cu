// kernels/sampling_logprobs.cu: log-probabilities of a chosen token and of the likeliest, by row.
//
// logprob = logit - log(sum of exp(logits)), the log-softmax of the logits as they are; ranks[r] = the place of the chosen
// token in the order of token_order.cuh, from 1.
// One block a row; a row whose num_top is negative is passed over. The n-th likeliest is the first in the order after
// the one before, so each takes a pass over the row: right for the few that are ever asked for.
// Bytes: 4 * vocabulary * (3 + num_top) a row, all but the first pass mostly from the L2 cache: the first takes 31 us
// at 4.22 TB/s for 256 rows of 128,256 tokens; measured on an H200 with the five likeliest: 433 us (1 row: 242).
#include "sampling.cuh"

extern "C" __global__ void sampling_logprobs(const float* logits,  // (R, vocabulary)
                                             const int* chosen,    // (R,): token ids
                                             const int* num_top,   // (R,): how many of the likeliest, at most width - 1
                                             int* ids,  // (R, width): the chosen one, then the likeliest; -1: none
                                             float* logprobs,  // (R, width)
                                             int* ranks,       // (R,)
                                             int vocabulary, int width) {
    __shared__ u64 partial[1024];
    const int r = blockIdx.x;
    if (num_top[r] < 0) return;
    const float* row = logits + (size_t)r * vocabulary;
    const int choice = chosen[r];
    const u64 chosen_key = token_key(row[choice], choice);

    u64 key = 0;
    for (int id = threadIdx.x; id < vocabulary; id += blockDim.x) key = Largest()(key, token_key(row[id], id));
    key = block_fold(key, partial, Largest());
    const float largest = row[key_id(key)];
    u64 sum = 0, before = 0;
    for (int id = threadIdx.x; id < vocabulary; id += blockDim.x) {
        sum += weight(row[id], largest, LOG2_E);
        before += token_key(row[id], id) > chosen_key;
    }
    sum = block_fold(sum, partial, Sum());
    before = block_fold(before, partial, Sum());
    const double normalizer = largest + log((double)sum / (double)ONE);

    int* my_ids = ids + (size_t)r * width;
    float* my_logprobs = logprobs + (size_t)r * width;
    if (threadIdx.x == 0) {
        my_ids[0] = choice;
        my_logprobs[0] = (float)(row[choice] - normalizer);
        ranks[r] = (int)before + 1;
    }
    for (int n = 1; n <= num_top[r]; n++) {
        if (threadIdx.x == 0) {
            my_ids[n] = key ? key_id(key) : -1;
            my_logprobs[n] = key ? (float)(row[key_id(key)] - normalizer) : -CUDART_INF_F;
        }
        u64 next = 0;
        for (int id = threadIdx.x; id < vocabulary; id += blockDim.x) {
            const u64 candidate = token_key(row[id], id);
            if (candidate < key) next = Largest()(next, candidate);
        }
        key = block_fold(next, partial, Largest());
    }
}
