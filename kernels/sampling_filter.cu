// kernels/sampling_filter.cu: which tokens of a row min-p, top-k and top-p leave, without sorting it.
//
// In vLLM's order, each among the tokens that the one before has left:
//   min_p   those at least min_p times as likely as the likeliest
//   top_k   the first k in the order of sampling.cuh, so of equal logits the lowest ids
//   top_p   the first that together have at least the share top_p; the one that crosses it is among them
// Each keeps the tokens down to some place in the order, which is told by an order_key and an id: tokens of a larger
// key stay, and of those with this very key the ones up to that id.
// The key is where a running sum crosses a number: of tokens for top_k, of weights for top_p. It is found in two steps.
// First the row is sorted roughly, into bins of equal width from its largest logit to its smallest; their sums say in
// which bin the key lies. Then the values of that one bin go to shared memory, and the key is found bit by bit, from
// the highest: a bit is set if what lies at or above still reaches the number. Exact, since all sums are of whole
// numbers. A bin of more than CANDIDATES values, as in a row of equal logits, is searched in the row itself.
// One block a row, of at most 512 threads. Bytes: the row six times or so, all but once mostly from the L2 cache.
#include "sampling.cuh"

#define CANDIDATES 4096
#define BINS 256

struct Workspace {
    u64 partial[512];
    u64 bins[BINS];
    float candidates[CANDIDATES];
    int crossing;  // the bin in which a sum crosses the wanted number
    u64 before;    // the sum of the bins before it
    int num_found;
};

struct Values {
    const float* at;
    int count;
};

// The bins of a row.
struct Scale {
    float largest, bins_per_unit;
    __device__ int bin_of(float logit) const {
        const float below = (largest - logit) * bins_per_unit;
        return below < BINS - 1 ? (int)below : BINS - 1;  // the last one also takes -inf
    }
};

struct Found {
    unsigned key;
    u64 above;  // the sum of what has a larger key
};

// The sum of amount(logit) over the values whose key is at least `lowest`, NaN left out.
template <class Amount>
__device__ u64 total(Values values, unsigned lowest, u64* partial, Amount amount) {
    u64 sum = 0;
    for (int i = threadIdx.x; i < values.count; i += blockDim.x) {
        const unsigned key = order_key(values.at[i]);
        if (key != 0 && key >= lowest) sum += amount(values.at[i]);
    }
    return block_fold(sum, partial, Sum());
}

__device__ Scale find_scale(Values row, u64* partial) {
    u64 first = 0, last = 0;
    for (int id = threadIdx.x; id < row.count; id += blockDim.x) {
        const float logit = row.at[id];
        first = Largest()(first, token_key(logit, id));
        if (logit > -CUDART_INF_F) last = Largest()(last, token_key(-logit, id));
    }
    const float largest = row.at[key_id(block_fold(first, partial, Largest()))];
    last = block_fold(last, partial, Largest());
    return {largest, BINS / (largest - (last ? row.at[key_id(last)] : largest))};
}

// The sums of amount(logit) by bin.
template <class Amount>
__device__ void fill_bins(Values row, Scale scale, Workspace& work, Amount amount) {
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) work.bins[b] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
        const float logit = row.at[i];
        if (logit == logit) atomicAdd(&work.bins[scale.bin_of(logit)], amount(logit));
    }
    __syncthreads();
}

// The largest key at and above which amounts sum up to `wanted`, with the bins filled; 0 if all of them do not.
template <class Amount>
__device__ Found find(Values row, Scale scale, u64 wanted, Workspace& work, Amount amount) {
    if (threadIdx.x == 0) {
        u64 sum = 0;
        int b = 0;
        while (b < BINS - 1 && sum + work.bins[b] < wanted) sum += work.bins[b++];
        work.crossing = b;
        work.before = sum;
        work.num_found = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
        if (scale.bin_of(row.at[i]) != work.crossing) continue;
        const int place = atomicAdd(&work.num_found, 1);
        if (place < CANDIDATES) work.candidates[place] = row.at[i];
    }
    __syncthreads();
    Values values = {work.candidates, work.num_found};
    u64 before = work.before;
    if (values.count > CANDIDATES) {
        values = row;
        before = 0;
    }
    unsigned key = 0;
    for (int bit = 31; bit >= 0; bit--) {
        const unsigned tried = key | 1u << bit;
        if (before + total(values, tried, work.partial, amount) >= wanted) key = tried;
    }
    return {key, before + total(values, key + 1, work.partial, amount)};
}

// The id of the ties-th token with this key; the last id there is if there are no more than so many.
__device__ int find_last_id(Values row, unsigned key, u64 ties, u64* partial) {
    int last = 0;
    for (int bit = 31 - __clz(row.count); bit >= 0; bit--) {
        const int tried = last | 1 << bit;
        u64 before = 0;
        for (int id = threadIdx.x; id < row.count && id < tried; id += blockDim.x)
            before += order_key(row.at[id]) == key;
        if (block_fold(before, partial, Sum()) < ties) last = tried;
    }
    return last;
}

extern "C" __global__ void __launch_bounds__(512)
    sampling_filter(const float* logits,    // (R, vocabulary)
                    const float* adjusted,  // (R, vocabulary), in place of logits where the row is adjusted
                    const Row* rows,        // (R,)
                    unsigned* lowest_keys,  // (R,): the key of the last token that stays
                    int* last_ids,          // (R,): the largest id that stays of those with this key
                    int vocabulary) {
    __shared__ Workspace work;
    u64* partial = work.partial;
    const Row& filter = rows[blockIdx.x];
    if (!filter.is_filtered) return;
    const Values row = {(filter.is_adjusted ? adjusted : logits) + (size_t)blockIdx.x * vocabulary, vocabulary};
    const Scale scale = find_scale(row, partial);
    const auto one = [](float) -> u64 { return 1; };
    const float largest = scale.largest, temperature = filter.temperature;
    const auto mass = [=](float logit) { return weight(logit, largest, temperature); };

    // min_p keeps the first so many, and so is a top_k
    u64 k = min(filter.top_k, vocabulary);
    if (filter.min_p > 0) {
        const u64 floor = (u64)(filter.min_p * (float)ONE);
        k = min(k, total(row, 1, partial, [=](float logit) -> u64 { return mass(logit) >= floor; }));
    }
    unsigned key = 0;
    u64 ties = vocabulary;  // how many of the tokens with this very key stay
    if (k < vocabulary) {
        fill_bins(row, scale, work, one);
        const Found found = find(row, scale, k, work, one);
        key = found.key;
        ties = k - found.above;
    }
    if (filter.top_p < 1) {
        fill_bins(row, scale, work, mass);
        u64 sum = total(row, key + 1, partial, mass);
        if (key) sum += ties * mass(key_logit(key));
        const u64 share = (u64)ceil(filter.top_p * (double)sum);
        const Found found = find(row, scale, share, work, mass);
        const u64 each = mass(key_logit(found.key));
        ties = each ? (share - found.above + each - 1) / each : 1;  // a row of NaN has nothing to add up
        key = found.key;
    }
    const u64 all_ties = total(row, key, partial, one) - total(row, key + 1, partial, one);
    const int last_id = ties < all_ties ? find_last_id(row, key, ties, partial) : vocabulary;
    if (threadIdx.x == 0) {
        lowest_keys[blockIdx.x] = key;
        last_ids[blockIdx.x] = last_id;
    }
}
