// kernels/sampling_draw.cu: one token id a row, the likeliest one or a draw, by the Gumbel-max trick (Gumbel, 1954).
//
// The largest of logit / temperature + Gumbel noise is a sample of softmax(logits / temperature), and nothing needs to
// be summed. A greedy row has no noise. The lowest id wins a tie; NaN never wins; a row of nothing but NaN gives 0.
// Grid (splits, R), any block size: a block takes tokens_per_block ids of a row, a multiple of four, since one call of
// Philox gives the noise of four neighbours. Blocks meet in best[r]; the last of a row to arrive writes its id. Noise
// belongs to a token id and a maximum has no order, so the grid does not change a draw.
// Bytes: each logit once, 4 * R * vocabulary. The noise, two logarithms to the last bit, takes longer than that: so each
// token gets an upper bound for it, one fast logarithm, and only a thread's most promising token gets the noise itself.
// The largest of those in the block then rules out nearly all others; the few that are left are looked at again.
// An H200 takes 62 us for 256 rows of 128,256, half of its bandwidth, and 162 us with all the noise; 5 us for one row.
#include "sampling.cuh"
#include "philox.cuh"

#define LARGEST_BOUND 33.0f  // of the noise times LOG2_E: -log2(2^-33)

// What the filter leaves of a row; one without a filter keeps all.
struct Kept {
    bool all;
    unsigned lowest_key;
    int last_id;
    __device__ Four operator()(Four found, int four) const {
        if (all) return found;
        for (int j = 0; j < 4; j++) {
            const unsigned key = order_key(found.x[j]);
            const bool stays = key > lowest_key || (key == lowest_key && 4 * four + j <= last_id);
            if (!stays) found.x[j] = CUDART_NAN_F;  // loses
        }
        return found;
    }
};

// What a block reads of a row.
struct Part {
    const float* logits;
    int first, end;  // ids, multiples of four, but for the end of the row
};

// How a row is drawn from.
struct Noise {
    unsigned seed_low, seed_high;
    int index;
    float temperature, scale;  // scale: LOG2_E / temperature

    __device__ Words words(int four) const { return token_words(four, index, seed_low, seed_high); }

    __device__ u64 noisy(float logit, unsigned word, int id) const {
        return logit == logit ? token_key(logit / temperature + gumbel(word), id) : 0;
    }

    // No noisy logit times LOG2_E is above its bound, but for rounding: -log(-log(1 - u)) <= -log(u).
    __device__ Four bounds(const Four& logits, const Words& random) const {
        Four bound;
        for (int j = 0; j < 4; j++) {
            bound.x[j] = logits.x[j] * scale + (32.0f - __log2f((float)random.word[j] + 0.5f));
        }
        return bound;
    }

    // The least bound with which a token may be as good as this noisy logit.
    __device__ float least_bound(float noisy) const {
        const float level = noisy * LOG2_E;
        return level - (1e-4f + 1e-6f * fabsf(level));
    }
};

// The most promising token of a thread, and what its other tokens reach at most.
struct Candidate {
    u64 key;      // with its noise; 0: there is none
    float other;  // the largest bound of the others
};

template <bool ALIGNED>
__device__ Candidate most_promising(const Part& part, const Kept& kept, const Noise& noise) {
    float best = -CUDART_INF_F, other = -CUDART_INF_F;
    int best_four = -1;
#pragma unroll 4
    for (int four = part.first / 4 + threadIdx.x; 4 * four < part.end; four += blockDim.x) {
        const Four logits = kept(load_four<ALIGNED>(part.logits, four, part.end), four);
        float bound = logits.largest() * noise.scale + LARGEST_BOUND;
        if (bound >= best) bound = noise.bounds(logits, noise.words(four)).largest();  // not so where all are left out
        if (bound > best || (best_four < 0 && bound == bound)) {
            other = best;
            best = bound;
            best_four = four;
        } else {
            other = fmaxf(other, bound);
        }
    }
    if (best_four < 0) return {0, other};
    const Four logits = kept(load_four<ALIGNED>(part.logits, best_four, part.end), best_four);
    const Words random = noise.words(best_four);
    const Four bound = noise.bounds(logits, random);
    float logit = CUDART_NAN_F;
    unsigned word = 0;
    int id = -1;
    for (int j = 0; j < 4; j++) {
        if (id < 0 && bound.x[j] == best) {
            logit = logits.x[j];
            word = random.word[j];
            id = 4 * best_four + j;
        } else {
            other = fmaxf(other, bound.x[j]);
        }
    }
    return {noise.noisy(logit, word, id), other};
}

// The best of this thread's tokens whose bound is not below `least`, with their noise.
template <bool ALIGNED>
__device__ u64 best_of_mine(const Part& part, const Kept& kept, const Noise& noise, float least) {
    u64 best = 0;
    for (int four = part.first / 4 + threadIdx.x; 4 * four < part.end; four += blockDim.x) {
        const Four logits = kept(load_four<ALIGNED>(part.logits, four, part.end), four);
        const Words random = noise.words(four);
        const Four bound = noise.bounds(logits, random);
        for (int j = 0; j < 4; j++) {
            if (bound.x[j] < least) continue;
            best = Largest()(best, noise.noisy(logits.x[j], random.word[j], 4 * four + j));
        }
    }
    return best;
}

// The first token of the block's part, in the order of noisy logits.
template <bool ALIGNED>
__device__ u64 draw(const Part& part, const Kept& kept, const Row& row, u64* partial) {
    if (row.temperature == 0) {
        const u64 mine = first_of_mine<ALIGNED>(part.logits, part.first, part.end, kept);
        return block_fold(mine, partial, Largest());
    }
    const Noise noise = {row.seed_low, row.seed_high, row.index, row.temperature, LOG2_E / row.temperature};
    const Candidate mine = most_promising<ALIGNED>(part, kept, noise);
    u64 key = block_fold(mine.key, partial, Largest());
    const float least = key ? noise.least_bound(key_logit(key)) : -CUDART_INF_F;
    const bool may_win = !(mine.other < least);  // also where infinite logits have made NaN of `least`
    if (__syncthreads_or(may_win)) {
        if (may_win) key = Largest()(key, best_of_mine<ALIGNED>(part, kept, noise, least));
        key = block_fold(key, partial, Largest());
    }
    return key;
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
    const int first = blockIdx.x * tokens_per_block;
    const Part part = {(row.is_adjusted ? adjusted : logits) + (size_t)r * vocabulary, first,
                       min(first + tokens_per_block, vocabulary)};
    Kept kept = {true, 0, 0};
    if (row.is_filtered) kept = {false, lowest_keys[r], last_ids[r]};

    const u64 key = is_aligned(part.logits, vocabulary) ? draw<true>(part, kept, row, partial)
                                                        : draw<false>(part, kept, row, partial);
    u64 winner;
    if (threadIdx.x != 0 || !arrives_last(key, &best[r], &num_arrived[r], winner)) return;
    ids[r] = winner ? key_id(winner) : 0;
    // The step after may be launched before the host knows this token, and its penalties count it
    if (row.slot >= 0 && row.num_tokens < max_model_len) {
        history[(size_t)row.slot * max_model_len + row.num_tokens] = ids[r];
    }
}
