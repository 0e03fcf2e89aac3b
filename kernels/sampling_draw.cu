// kernels/sampling_draw.cu: one token id a row, the likeliest one or a draw, by the Gumbel-max trick (Gumbel, 1954).
//
// The largest of logit / temperature + Gumbel noise is a sample of softmax(logits / temperature), and nothing needs to
// be summed. A greedy row has no noise. The lowest id wins a tie; NaN never wins; a row of nothing but NaN gives 0.
// Grid (splits, R), any block size: a block takes tokens_per_block ids of a row, a multiple of four, since one call of
// Philox gives the noise of four neighbours. Blocks meet in best[r]; the last of a row to arrive writes its id. Noise
// belongs to a token id and a maximum has no order, so the grid does not change a draw.
// Bytes: each logit once, 4 * R * vocabulary. What takes the time is the noise, some 50 instructions a token, so it is
// left out for tokens that could not win with the largest noise there is.
#include "sampling.cuh"
#include "philox.cuh"

// What the filter leaves of a row; one without a filter keeps all.
struct Kept {
    unsigned lowest_key;
    int last_id;
    __device__ bool has(float logit, int id) const {
        const unsigned key = order_key(logit);
        return key > lowest_key || (key == lowest_key && id <= last_id);
    }
};

// The largest of the ids that this thread owns in [first, end), as a token_key; 0 if there is none.
__device__ u64 best_of_mine(const float* logits, const Row& row, Kept kept, int first, int end) {
    const bool greedy = row.temperature == 0;
    float best = -CUDART_INF_F;
    int best_id = -1;
    for (int group = first / 4 + threadIdx.x; 4 * group < end; group += blockDim.x) {
        float value[4];
        bool may_win = false;
        for (int j = 0; j < 4; j++) {
            const int id = 4 * group + j;
            value[j] = CUDART_NAN_F;  // loses
            if (id >= end || !kept.has(logits[id], id)) continue;
            value[j] = greedy ? logits[id] : logits[id] / row.temperature;
            may_win |= value[j] + LARGEST_NOISE >= best;
        }
        if (!may_win) continue;
        Words random;
        if (!greedy) random = token_words(group, row.index, row.seed_low, row.seed_high);
        for (int j = 0; j < 4; j++) {
            const float noisy = greedy ? value[j] : value[j] + gumbel(random.word[j]);
            if (noisy > best || (noisy == best && best_id < 0)) {  // ids grow, so the first of equals stays
                best = noisy;
                best_id = 4 * group + j;
            }
        }
    }
    return best_id < 0 ? 0 : token_key(best, best_id);
}

extern "C" __global__ void sampling_draw(const float* logits,          // (R, vocabulary)
                                         const float* adjusted,        // (R, vocabulary), where the row is adjusted
                                         const Row* rows,              // (R,)
                                         const unsigned* lowest_keys,  // (R,), where the row is filtered
                                         const int* last_ids,          // (R,), where the row is filtered
                                         u64* best,                    // (R,): zeros, before and after
                                         int* num_arrived,             // (R,): zeros, before and after
                                         int* ids,                     // (R,)
                                         int* history,                 // (slots, max_model_len)
                                         int vocabulary, int tokens_per_block, int max_model_len) {
    __shared__ u64 partial[1024];
    const int r = blockIdx.y;
    const Row& row = rows[r];
    const float* mine = (row.is_adjusted ? adjusted : logits) + (size_t)r * vocabulary;
    Kept kept = {0, vocabulary};
    if (row.is_filtered) kept = {lowest_keys[r], last_ids[r]};

    const int first = blockIdx.x * tokens_per_block;
    const int end = min(first + tokens_per_block, vocabulary);
    const u64 key = block_fold(best_of_mine(mine, row, kept, first, end), partial, Largest());
    if (threadIdx.x != 0) return;
    atomicMax(&best[r], key);
    __threadfence();  // whoever sees this block counted sees its key too
    if (atomicAdd(&num_arrived[r], 1) < gridDim.x - 1) return;
    const u64 winner = atomicExch(&best[r], 0ull);
    num_arrived[r] = 0;
    ids[r] = winner ? key_id(winner) : 0;
    // The step after may be launched before the host knows this token, and its penalties count it
    if (row.slot >= 0 && row.num_tokens < max_model_len) {
        history[(size_t)row.slot * max_model_len + row.num_tokens] = ids[r];
    }
}
