// kernels/token_order.cuh: the order of a row's tokens, and how the threads and blocks of a row agree on one of them.
//
// Tokens are ordered by logit, the largest first, and among equal logits by id, the lowest first. Greedy takes the first
// in this order; top-k, top-p and min-p each keep the tokens down to some place in it. As integers:
//   order_key(logit)       32 bits, the larger the logit the larger; NaN has 0
//   token_key(logit, id)   64 bits, the earlier in the order the larger; 0 is no token at all
// Logits are read in fours, four neighbours from a multiple of four on: 16 bytes in one load where rows begin at
// multiples of 16 bytes (ALIGNED), and one by one elsewhere.
#pragma once
#include <math_constants.h>

using u64 = unsigned long long;

__device__ __forceinline__ unsigned order_key(float logit) {
    if (logit != logit) return 0;
    const unsigned bits = __float_as_uint(logit + 0.0f);  // + 0 makes -0 and 0 one number
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ u64 token_key(float logit, int id) {
    return (u64)order_key(logit) << 32 | (0xFFFFFFFFu - (unsigned)id);
}

__device__ __forceinline__ int key_id(u64 key) { return (int)(0xFFFFFFFFu - (unsigned)key); }

// The logit of a token_key; NaN for 0.
__device__ __forceinline__ float key_logit(u64 key) {
    const unsigned order = (unsigned)(key >> 32);
    return __uint_as_float(order & 0x80000000u ? order & 0x7FFFFFFFu : ~order);
}

// ---- four neighbours

struct Four {
    float x[4];
    __device__ float largest() const { return fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])); }  // NaN if all are
};

__device__ __forceinline__ bool is_aligned(const float* row, int vocabulary) {
    return vocabulary % 4 == 0 && (size_t)row % 16 == 0;
}

// The logits of ids 4 * four, ..., 4 * four + 3; NaN, which loses, from `end` on, a multiple of four if ALIGNED.
template <bool ALIGNED>
__device__ __forceinline__ Four load_four(const float* row, int four, int end) {
    Four found;
    if constexpr (ALIGNED) {
        const float4 v = reinterpret_cast<const float4*>(row)[four];
        found = {v.x, v.y, v.z, v.w};
    } else {
        for (int j = 0; j < 4; j++) found.x[j] = 4 * four + j < end ? row[4 * four + j] : CUDART_NAN_F;
    }
    return found;
}

// The first in the order of the tokens in [first, end), a multiple of four, that this thread owns and `keeps` leaves.
// Thread t owns the fours t, t + blockDim.x, ... of them. 0: there is none, or nothing but NaN.
template <bool ALIGNED, class Keeps>
__device__ u64 first_of_mine(const float* row, int first, int end, Keeps keeps) {
    float best = -CUDART_INF_F;
    int best_four = -1;
#pragma unroll 4
    for (int four = first / 4 + threadIdx.x; 4 * four < end; four += blockDim.x) {
        const float largest = keeps(load_four<ALIGNED>(row, four, end), four).largest();
        if (largest > best || (best_four < 0 && largest == largest)) {  // ids grow, so the first of equals stays
            best = largest;
            best_four = four;
        }
    }
    if (best_four < 0) return 0;
    const Four found = keeps(load_four<ALIGNED>(row, best_four, end), best_four);
    int j = 0;
    while (j < 3 && found.x[j] != best) j++;
    return token_key(best, 4 * best_four + j);
}

// ---- agreement

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

// The gridDim.x blocks of a row meet in two numbers, zeros before and after: one thread of each brings its key. True for
// the last to arrive, which gets the largest key of all.
__device__ bool arrives_last(u64 key, u64* best, int* num_arrived, u64& largest) {
    atomicMax(best, key);
    __threadfence();  // whoever sees this block counted sees its key too
    if (atomicAdd(num_arrived, 1) < gridDim.x - 1) return false;
    largest = atomicExch(best, 0ull);
    *num_arrived = 0;
    return true;
}
