// kernels/sampling.cuh: what the sampling kernels share: the record of a row, the order of tokens, weights, block sums.
//
// Tokens are ordered by logit, the largest first, and among equal logits by id, the lowest first. Greedy takes the first
// in this order; top-k, top-p and min-p each keep the tokens down to some place in it. As integers:
//   order_key(logit)       32 bits, the larger the logit the larger; NaN has 0
//   token_key(logit, id)   64 bits, the earlier in the order the larger; 0 is no token at all
#pragma once
#include <math_constants.h>

using u64 = unsigned long long;

#define ONE 17592186044416ull  // 2^44: the weight of the likeliest token, see weight()

// How to draw from one row. tiny_vllm/ops/sampling.py has the same fields in the same order.
struct Row {
    float temperature;  // 0: greedy, without noise
    unsigned seed_low;
    unsigned seed_high;
    int index;        // of the output token that is drawn
    int is_filtered;  // top-k, top-p or min-p leaves tokens out
    int top_k;
    float top_p;
    float min_p;
    int is_adjusted;  // logits are changed before the draw
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    int first_bias;  // the row's biases are first_bias, first_bias + 1, ..., num_biases of them
    int num_biases;
    int slot;        // its row of the token history; -1: it has none, since it has no penalties
    int num_prompt;  // tokens of the prompt, the first of the history
    int num_known;   // tokens that the host knows
    int num_tokens;  // and those in flight, which only the device knows yet
    int newest;      // the last token that the host knows; those before it are in the history
};

__device__ __forceinline__ unsigned order_key(float logit) {
    if (logit != logit) return 0;
    const unsigned bits = __float_as_uint(logit + 0.0f);  // + 0 makes -0 and 0 one number
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The logit of an order_key.
__device__ __forceinline__ float key_logit(unsigned key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

__device__ __forceinline__ u64 token_key(float logit, int id) {
    return (u64)order_key(logit) << 32 | (0xFFFFFFFFu - (unsigned)id);
}

__device__ __forceinline__ int key_id(u64 key) { return (int)(0xFFFFFFFFu - (unsigned)key); }

// How likely a token is beside the likeliest, exp((logit - largest) / temperature), in units of 2^-44. Whole numbers
// add up to the same sum in any order, so neither the number of threads nor their timing changes a result.
__device__ __forceinline__ u64 weight(float logit, float largest, float temperature) {
    if (logit == largest) return ONE;  // also where both are infinite
    if (!(logit < largest)) return 0;  // NaN
    return (u64)(expf((logit - largest) / temperature) * (float)ONE);
}

struct Sum {
    __device__ u64 operator()(u64 a, u64 b) const { return a + b; }
};

struct Largest {
    __device__ u64 operator()(u64 a, u64 b) const { return b > a ? b : a; }
};

// One number out of those of all threads, in every thread. partial: blockDim.x numbers of shared memory.
// Every 32nd number is folded by one thread of the first 32, and their results by thread 0.
template <class Combine>
__device__ u64 block_fold(u64 value, u64* partial, Combine combine) {
    const int t = threadIdx.x, size = blockDim.x;
    __syncthreads();  // the result of an earlier call has been read
    partial[t] = value;
    __syncthreads();
    if (t < 32) {
        for (int i = t + 32; i < size; i += 32) value = combine(value, partial[i]);
        partial[t] = value;
    }
    __syncthreads();
    if (t == 0) {
        for (int i = 1; i < 32 && i < size; i++) value = combine(value, partial[i]);
        partial[0] = value;
    }
    __syncthreads();
    return partial[0];
}
