// kernels/sampling_filter.cu: which tokens of a row min-p, top-k and top-p leave, without sorting it.
//
// In vLLM's order, each among the tokens that the one before has left:
//   min_p   those at least min_p times as likely as the likeliest
//   top_k   the first k in the order of token_order.cuh, so of equal logits the lowest ids
//   top_p   the first that together have at least the share top_p; the one that crosses it is among them
// Each keeps the tokens down to some place in the order, the last token that stays: all before it stay too.
// The last one is mostly among the first few hundred, so these are listed in shared memory, and all the rest is done
// there. A bound for them comes from groups of tokens: the k-th largest of the groups' maxima is at most the k-th
// largest logit, as k tokens at least are not below it, and few more. So the row is read twice: for the maxima, and for
// what reaches the bound.
// Where the list does not hold the last token that stays (top_p of a flat row, a large top_k), the row is sorted
// roughly, into bins of equal width, and the bin in which the sum crosses the number is listed and searched.
// One block a row, of a power of two of at most 1,024 threads. Bytes: the row twice, 8 * R * vocabulary; six times for
// a top_p of a flat row. For 256 rows of 128,256 an H200 takes 94 us, 66% of its bandwidth, for a top_k of 50 and a
// top_p of 0.9, and 334 us for that top_p of a flat row.
#include "sampling_search.cuh"

// How many maxima the bound may be down: then some 3,000 tokens of a row in any order are listed.
#define MOST_PROBED 2048

struct Filter {
    u64 top_k;  // at most the vocabulary
    float top_p, min_p;
    float largest, scale;  // for weight()
    __device__ u64 mass(float logit) const { return weight(logit, largest, scale); }
    __device__ bool is_likely(float logit) const { return mass(logit) >= (u64)(min_p * (float)ONE); }
};

__device__ u64 one(float) { return 1; }

__device__ u64 share_of(float top_p, u64 sum) { return (u64)ceil(top_p * (double)sum); }

// The largest logit of each group of tokens, as a token_key whose id is the group's; how many groups there are. A thread
// takes the fours of a group one blockDim.x apart.
template <bool ALIGNED>
__device__ int list_maxima(const Tokens& row, Workspace& work) {
    const int num_fours = (row.count + 3) / 4;
    const int depth = (num_fours + MAX_LISTED - 1) / MAX_LISTED;
    int first = 0;
    for (int start = threadIdx.x; start - (int)threadIdx.x < num_fours; start += depth * blockDim.x) {
        float largest = CUDART_NAN_F;
#pragma unroll 4
        for (int i = 0; i < depth; i++) {
            const int four = start + i * blockDim.x;
            if (four < num_fours) largest = fmaxf(largest, load_four<ALIGNED>(row.at, four, row.count).largest());
        }
        work.listed[first + threadIdx.x] = token_key(largest, first + threadIdx.x);
        first += blockDim.x;
    }
    __syncthreads();
    return first;
}

// The key of the last token that stays, of the `count` listed ones, which are the first of the row in the order; 0: all
// tokens stay. False if it is not surely one of them. row_mass: that of the row, for a filter that is a top_p alone.
__device__ bool find_listed(const Filter& filter, const Tokens& row, int count, bool are_all, u64 row_mass,
                            Workspace& work, u64& last) {
    const List list = {work.listed, count};
    const auto mass = [&](float logit) { return filter.mass(logit); };
    const u64 num_likely = total(list, work, [&](float logit) -> u64 { return filter.is_likely(logit); });
    const u64 k = min(filter.top_k, num_likely);
    last = 0;
    if (are_all || num_likely < count || filter.top_k <= MOST_PROBED) {
        if (k < row.count) last = find(list, k, work, one);
        if (filter.top_p == 1) return true;
        u64 sum = 0;
        list.each([&](u64 key) { sum += key >= last ? mass(key_logit(key)) : 0; });
        sum = block_fold(sum, work.partial, Sum());
        if (sum) last = find(list, share_of(filter.top_p, sum), work, mass);  // a row of NaN has nothing to add up
        return true;
    }
    if (!row_mass) return false;
    const u64 share = share_of(filter.top_p, row_mass);
    if (total(list, work, mass) < share) return false;
    last = find(list, share, work, mass);
    return true;
}

// The bins of a row: of equal width, the last one for the largest logit.
struct Scale {
    float largest, bins_per_unit;
    __device__ int bin_of(float logit) const {
        const float below = (largest - logit) * bins_per_unit;
        return below < BINS - 1 ? BINS - 1 - (int)below : 0;  // the first one also takes -inf
    }
};

__device__ Scale find_scale(const Tokens& row, float largest, Workspace& work) {
    float least = CUDART_NAN_F;
    row.each_logit([&](float logit, int) {
        if (logit > -CUDART_INF_F) least = fminf(least, logit);
    });
    const u64 key = block_fold(least == least ? token_key(-least, 0) : 0, work.partial, Largest());
    return {largest, BINS / (largest - (key ? -key_logit(key) : largest))};
}

// As find(), in a whole row.
template <class Amount>
__device__ u64 find_in_row(const Tokens& row, const Scale& scale, u64 wanted, Workspace& work, Amount amount) {
    clear_bins(work);
    row.each_logit([&](float logit, int) { work.bins[scale.bin_of(logit)].add(amount(logit)); });
    find_crossing(wanted, work);
    const int bin = work.crossing;
    if (bin < 0) return 0;
    if (work.bins[bin].count > MAX_LISTED) return find(row, wanted, work, amount);
    const u64 before = work.before;
    const int count = list_tokens(row, work, [&](float logit) { return scale.bin_of(logit) == bin; });
    return find(List{work.listed, count}, wanted - before, work, amount);
}

// As find_listed, for any filter.
__device__ u64 find_anywhere(const Filter& filter, const Tokens& row, Workspace& work) {
    const Scale scale = find_scale(row, filter.largest, work);
    const auto mass = [&](float logit) { return filter.mass(logit); };
    u64 k = filter.top_k, last = 0;
    if (filter.min_p > 0) k = min(k, total(row, work, [&](float logit) -> u64 { return filter.is_likely(logit); }));
    if (k < row.count) last = find_in_row(row, scale, k, work, one);
    if (filter.top_p == 1) return last;
    u64 sum = 0;
    row.each([&](u64 key) { sum += key >= last ? mass(key_logit(key)) : 0; });
    sum = block_fold(sum, work.partial, Sum());
    return sum ? find_in_row(row, scale, share_of(filter.top_p, sum), work, mass) : 0;
}

extern "C" __global__ void __launch_bounds__(1024)
    sampling_filter(const float* logits,    // (R, vocabulary)
                    const float* adjusted,  // (R, vocabulary), in place of logits where the row is adjusted
                    const Row* rows,        // (R,)
                    unsigned* lowest_keys,  // (R,): the order_key of the last token that stays
                    int* last_ids,          // (R,): its id; of equal logits those of larger ids do not stay
                    int vocabulary) {
    __shared__ Workspace work;
    const Row& wanted = rows[blockIdx.x];
    if (!wanted.is_filtered) return;
    const Tokens row = {(wanted.is_adjusted ? adjusted : logits) + (size_t)blockIdx.x * vocabulary, vocabulary};
    Filter filter = {(u64)min(wanted.top_k, vocabulary), wanted.top_p, wanted.min_p, 0, LOG2_E / wanted.temperature};

    const int num_groups =
        is_aligned(row.at, vocabulary) ? list_maxima<true>(row, work) : list_maxima<false>(row, work);
    const List maxima = {work.listed, num_groups};
    u64 mine = 0;
    maxima.each([&](u64 key) { mine = Largest()(mine, key); });
    filter.largest = key_logit(block_fold(mine, work.partial, Largest()));
    const u64 probed = min(filter.top_k, (u64)MOST_PROBED);
    const u64 bound = vocabulary > MAX_LISTED ? find(maxima, probed, work, one) >> 32 : 0;

    const float least = bound ? key_logit(bound << 32) : -CUDART_INF_F;
    const bool needs_mass = filter.top_k == vocabulary && filter.min_p == 0;
    u64 sum = 0;
    const int count = list_tokens(row, work, [&](float logit) {
        if (needs_mass) sum += filter.mass(logit);
        return logit >= least;
    });
    if (needs_mass) sum = block_fold(sum, work.partial, Sum());
    u64 last;
    const bool is_listed = count <= MAX_LISTED && find_listed(filter, row, count, !bound, sum, work, last);
    if (!is_listed) last = find_anywhere(filter, row, work);
    if (threadIdx.x == 0) {
        lowest_keys[blockIdx.x] = (unsigned)(last >> 32);
        last_ids[blockIdx.x] = key_id(last);
    }
}
