// kernels/sampling.cuh: what the sampling kernels share beside the order of tokens: the record of a row, and weights.
#pragma once
#include "token_order.cuh"

#define ONE 17592186044416ull  // 2^44: the weight of the likeliest token, see weight()
#define LOG2_E 1.44269504f     // exp(x) = 2^(x * LOG2_E)

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

// How likely a token is beside the likeliest, exp((logit - largest) / temperature), in units of 2^-44. Whole numbers
// add up to the same sum in any order, so neither the number of threads nor their timing changes a result.
// scale: LOG2_E / temperature.
__device__ __forceinline__ u64 weight(float logit, float largest, float scale) {
    if (logit == largest) return ONE;  // also where both are infinite
    if (!(logit < largest)) return 0;  // NaN
    return (u64)(exp2f((logit - largest) * scale) * (float)ONE);
}
