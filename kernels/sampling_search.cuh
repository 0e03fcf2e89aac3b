// kernels/sampling_search.cuh: a place in the order of a row's tokens, found by one block without sorting them.
//
// The place is where a running sum crosses a number: of tokens for top-k, of their weights for top-p. Sums of weights
// are of whole numbers, so they are exact and the same in any order.
#pragma once
#include "sampling.cuh"

#define MAX_LISTED 4096  // tokens that fit into shared memory
#define BINS 256

// The sum of 64-bit amounts, in two words: shared memory adds 32 bits at a time.
struct Bin {
    unsigned low, high, count;
    __device__ void add(u64 amount) {
        const unsigned part = (unsigned)amount;
        const unsigned carry = atomicAdd(&low, part) > 0xFFFFFFFFu - part;
        const unsigned more = (unsigned)(amount >> 32) + carry;
        if (more) atomicAdd(&high, more);
        atomicAdd(&count, 1u);
    }
    __device__ u64 sum() const { return (u64)high << 32 | low; }
};

struct Workspace {
    u64 listed[MAX_LISTED];  // token_keys
    u64 partial[1024];
    u64 sums[16];  // of every 16 bins
    Bin bins[BINS];
    int crossing;  // the bin in which a sum crosses the wanted number; -1: none
    u64 before;    // the sum of the bins before it
    u64 found;
    int num_listed;
};

// Tokens of shared memory, each a token_key.
struct List {
    const u64* at;
    int count;
    template <class Visit>
    __device__ void each(Visit visit) const {
#pragma unroll 1
        for (int i = threadIdx.x; i < count; i += blockDim.x) visit(at[i]);
    }
};

// A whole row of logits; NaN is passed over.
struct Tokens {
    const float* at;
    int count;

    template <class Visit>
    __device__ void each(Visit visit) const {
        each_logit([&](float logit, int id) { visit(token_key(logit, id)); });
    }

    template <class Visit>
    __device__ void each_logit(Visit visit) const {
        const int num_fours = is_aligned(at, count) ? count / 4 : 0;
#pragma unroll 1  // `visit` is long, and there are many of them: a compiler takes seconds for what it unrolls
        for (int four = threadIdx.x; four < num_fours; four += blockDim.x) {
            const Four found = load_four<true>(at, four, count);
            for (int j = 0; j < 4; j++) {
                if (found.x[j] == found.x[j]) visit(found.x[j], 4 * four + j);
            }
        }
#pragma unroll 1
        for (int id = 4 * num_fours + threadIdx.x; id < count; id += blockDim.x) {
            if (at[id] == at[id]) visit(at[id], id);
        }
    }
};

// The sum of amount(logit) over some tokens.
template <class Values, class Amount>
__device__ u64 total(const Values& values, Workspace& work, Amount amount) {
    u64 sum = 0;
    values.each([&](u64 key) { sum += amount(key_logit(key)); });
    return block_fold(sum, work.partial, Sum());
}

// Put the tokens of a row that `takes` into work.listed, in any order; how many there are, though they may not fit.
template <class Takes>
__device__ int list_tokens(const Tokens& row, Workspace& work, Takes takes) {
    if (threadIdx.x == 0) work.num_listed = 0;
    __syncthreads();
    row.each_logit([&](float logit, int id) {
        if (!takes(logit)) return;
        const int place = atomicAdd(&work.num_listed, 1);
        if (place < MAX_LISTED) work.listed[place] = token_key(logit, id);
    });
    __syncthreads();
    return work.num_listed;
}

__device__ void clear_bins(Workspace& work) {
    __syncthreads();  // what was found in them has been read
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) work.bins[b] = {0, 0, 0};
    __syncthreads();
}

// Where the bins, added up from the last to the first, reach `wanted`. By groups of 16, then in one of them.
__device__ void find_crossing(u64 wanted, Workspace& work) {
    __syncthreads();
    for (int group = threadIdx.x; group < BINS / 16; group += blockDim.x) {
        u64 sum = 0;
        for (int b = 16 * group; b < 16 * group + 16; b++) sum += work.bins[b].sum();
        work.sums[group] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        u64 before = 0;
        int group = BINS / 16 - 1;
        while (group >= 0 && before + work.sums[group] < wanted) before += work.sums[group--];
        int b = 16 * group + 15;
        while (group >= 0 && before + work.bins[b].sum() < wanted) before += work.bins[b--].sum();
        work.crossing = group < 0 ? -1 : b;
        work.before = before;
    }
    __syncthreads();
}

// The first token, as a token_key, at which the amounts of it and those before it sum up to `wanted`; 0 if they never do.
// Eight bits of the key are found at a time, from the highest: those of the bin in which the sum crosses the number.
template <class Values, class Amount>
__device__ u64 find(const Values& values, u64 wanted, Workspace& work, Amount amount) {
    u64 found = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        const auto is_one = [=](u64 key, int bits) { return bits == 64 || (key ^ found) >> bits == 0; };
        clear_bins(work);
        values.each([&](u64 key) {
            if (is_one(key, shift + 8)) work.bins[key >> shift & 255].add(amount(key_logit(key)));
        });
        find_crossing(wanted, work);
        if (work.crossing < 0) return 0;
        found |= (u64)work.crossing << shift;
        wanted -= work.before;
        if (work.bins[work.crossing].count > 1 && shift > 0) continue;
        values.each([&](u64 key) {
            if ((key ^ found) >> shift == 0) work.found = key;
        });
        break;
    }
    __syncthreads();
    return work.found;
}
