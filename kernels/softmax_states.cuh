// kernels/softmax_states.cuh: the softmaxes of warps and of splits become one (chapters 13 and 14).
//
// A state is what some keys of a head have come to: the weighted sum of their values, the maximum that the weights are
// relative to (in powers of two), and the sum of the weights. A block merges its warps' states in shared memory. Where
// a context is split, each block leaves the result in global memory, and the last one of them to come to its end
// merges those (Flash-Decoding, Dao et al., 2023): no second launch, and no block waits for another.
#pragma once
#include "dtype.cuh"

constexpr int STATE = HEAD_DIM + 4;       // floats: values, maximum, sum, and two that align the next one
constexpr int MAX_STATES = 16;            // that are merged together: of warps, of splits
constexpr float MINUS_INFINITY = -1e30f;  // finite: minus itself it is 0, where -inf - -inf is NaN

// Dimension d of head h out of `count` states, states (count, group, STATE): the state of all their keys together.
// A state of no keys weighs nothing; of nothing but such, the sum is 0. FROM_L2: other blocks wrote them.
// All MAX_STATES are read at once, without a branch: the last one again for those that are not there.
template <bool FROM_L2>
__device__ __forceinline__ void merge(float& value, float& maximum, float& sum, const float* states, int count,
                                      int group, int h, int d) {
    auto read = [](const float* p) { return FROM_L2 ? __ldcg(p) : *p; };
    float values[MAX_STATES], maxima[MAX_STATES], sums[MAX_STATES];
    value = sum = 0.0f, maximum = MINUS_INFINITY;
#pragma unroll
    for (int i = 0; i < MAX_STATES; i++) {
        const float* state = states + (min(i, count - 1) * group + h) * STATE;
        values[i] = read(state + d), maxima[i] = read(state + HEAD_DIM), sums[i] = read(state + HEAD_DIM + 1);
    }
#pragma unroll
    for (int i = 0; i < MAX_STATES; i++) maximum = fmaxf(maximum, maxima[i]);
#pragma unroll
    for (int i = 0; i < MAX_STATES; i++) {
        const float weight = i < count ? exp2f(maxima[i] - maximum) : 0.0f;
        value += weight * values[i];
        sum += weight * sums[i];
    }
}

// Whether this block is the last of `count` to come here; what the others wrote before can then be read from L2.
// flag: one in shared memory.
__device__ __forceinline__ bool is_last_of(int count, int* arrived, bool* flag) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *flag = atomicAdd(arrived, 1) == count - 1;
        if (*flag) *arrived = 0;  // as the next launch wants it
    }
    __syncthreads();
    __threadfence();
    return *flag;
}

// The block's warps' states into the output, by way of the other splits' where there are any.
__device__ __forceinline__ void finish(const float* states, scalar_t* out, float* partial, int* arrived, bool* flag,
                                       int splits, int group) {
    const int warps = blockDim.x / 32;
    float value, maximum, sum;
    for (int i = threadIdx.x; i < group * HEAD_DIM; i += blockDim.x) {
        const int h = i / HEAD_DIM, d = i % HEAD_DIM;
        merge<false>(value, maximum, sum, states, warps, group, h, d);
        float* part = partial + (blockIdx.y * group + h) * STATE;
        if (splits == 1) out[i] = scalar_t(sum == 0.0f ? 0.0f : value / sum);
        else part[d] = value;
        if (splits > 1 && d == 0) part[HEAD_DIM] = maximum, part[HEAD_DIM + 1] = sum;
    }
    if (splits == 1 || !is_last_of(splits, arrived, flag)) return;
    for (int i = threadIdx.x; i < group * HEAD_DIM; i += blockDim.x) {
        merge<true>(value, maximum, sum, partial, splits, group, i / HEAD_DIM, i % HEAD_DIM);
        out[i] = scalar_t(value / sum);  // a request with several splits has keys
    }
}
