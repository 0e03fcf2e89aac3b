// kernels/decode_layers_attention.cuh: attention, the phase of decode_layers.cu between two products.
//
// A unit of work is a row and a key/value head, or one of up to 16 splits of its pages; a block takes one, its warps
// take the pages in turn (decode_layers_pages.cuh). Each warp has a softmax of its own; these meet in shared memory,
// those of splits through exchange words, and every split finishes a part of the outputs.
#pragma once
#include "decode_layers_pages.cuh"

constexpr int SHARED_STATES = WARPS * GROUP * STATE * 4;
constexpr int MAX_SPLITS = 16;
constexpr int SPLIT_TOKENS = 128;  // a context twice as long is worth splitting

// How work is dealt out, by the numbers of rows and blocks.
struct Units {
    int pairs, most;  // of rows and key/value heads; splits of each at most

    __device__ __forceinline__ explicit Units(int rows) : pairs(rows * NUM_KV_HEADS), most(1) {
        while (most < MAX_SPLITS && 2 * most * pairs <= (int)gridDim.x) most *= 2;
    }
    __device__ __forceinline__ int splits(int seq_len) const {
        int n = 1;
        if (seq_len > 2 * SPLIT_TOKENS)
            while (n < most && n * SPLIT_TOKENS < seq_len) n *= 2;
        return n;
    }
};

// Part of a head's output: one dimension's sum, and the maximum and sum of weights that belong to it.
struct Part {
    float out, maximum, sum;
    __device__ __forceinline__ float result() const { return sum == 0.0f ? 0.0f : out / sum; }
};

// Output i of the block, over its warps; i = head of the group * HEAD_DIM + dimension.
__device__ __forceinline__ Part merge_warps(const float* states, int i) {
    const float* state = states + i / HEAD_DIM * STATE;
    Part part = {0.0f, LOWEST, 0.0f};
#pragma unroll
    for (int w = 0; w < WARPS; w++) part.maximum = fmaxf(part.maximum, state[w * GROUP * STATE + HEAD_DIM]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float* each = state + w * GROUP * STATE;
        const float shrink = exp2_of(each[HEAD_DIM] - part.maximum);
        part.out += shrink * each[i % HEAD_DIM];
        part.sum += shrink * each[HEAD_DIM + 1];
    }
    return part;
}

// A block's words for the other splits: GROUP * HEAD_DIM sums, then each head's maximum and sum of weights.
__device__ __forceinline__ void put_part(const Exchange& exchange, int at, int i, const Part& part) {
    const int stat = GROUP * HEAD_DIM + 2 * (i / HEAD_DIM);
    store_word(exchange.now + at + i, __float_as_uint(part.out));
    if (i % HEAD_DIM == 0) store_word(exchange.now + at + stat, __float_as_uint(part.maximum));
    if (i % HEAD_DIM == 1) store_word(exchange.now + at + stat + 1, __float_as_uint(part.sum));
}
// Output i over all splits; lanes of a warp that differ in their last bits hold the splits.
__device__ __forceinline__ Part merge_splits(const Exchange& exchange, int at, int i, int splits) {
    const int stat = GROUP * HEAD_DIM + 2 * (i / HEAD_DIM);
    const unsigned* words = exchange.now + at;
    const unsigned out = load_word(words + i), maximum = load_word(words + stat), sum = load_word(words + stat + 1);
    Part part = {__uint_as_float(await_word(out, words + i)), __uint_as_float(await_word(maximum, words + stat)),
                 __uint_as_float(await_word(sum, words + stat + 1))};
    __syncwarp();
    float top = part.maximum;
    for (int n = 1; n < splits; n *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, n));
    const float shrink = exp2_of(part.maximum - top);
    part = {part.out * shrink, top, part.sum * shrink};
    for (int n = 1; n < splits; n *= 2) {
        part.out += __shfl_xor_sync(~0u, part.out, n);
        part.sum += __shfl_xor_sync(~0u, part.sum, n);
    }
    return part;
}

// The phase.
struct Attention : Products {
    Units units;
    float* states;  // (WARPS, GROUP, STATE), in shared memory

    __device__ __forceinline__ Attention(const Step& step, const Ring& ring, const Exchange& exchange, float* shared)
        : Products(step, ring, exchange, shared),
          units(step.rows),
          states(shared + (SHARED_SUMS + SHARED_SQUARES) / 4) {}

    __device__ __forceinline__ void attention() const {
        const int split = blockIdx.x % units.most, at = AT_PARTIAL + blockIdx.x * PARTIAL_WORDS;
        for (int i = threadIdx.x; i < PARTIAL_WORDS; i += CONSUMERS) exchange.next[at + i] = EMPTY;
        const bf16* cache = static_cast<const bf16*>(address(CACHE));
#pragma unroll 1
        for (int pair = blockIdx.x / units.most; pair < units.pairs; pair += gridDim.x / units.most) {
            const int row = pair / NUM_KV_HEADS, head = pair % NUM_KV_HEADS, seq_len = step.seq_lens[row];
            const int splits = units.splits(seq_len);
            if (split >= splits) continue;
            const unsigned* words = exchange.now + AT_QKV + slots.to_read(row) * QKV_WORDS;
            const unsigned* key = words + (Q_COLUMNS + head * HEAD_DIM) / 2;
            const Keys keys = {cache + (size_t)head * 2 * PAGE_ELEMENTS,
                               step.block_table + row * step.table_width,
                               seq_len,
                               step.slots[row] < 0 ? -1 : seq_len - 1,
                               key,
                               key + NUM_KV_HEADS * HALF_DIM};
            Softmax softmax;
            attend(softmax, keys, Range(seq_len, split, splits), words + head * GROUP * HALF_DIM);
            store_state(states, softmax);
            sync_first_threads<CONSUMERS>();
            put_attended(row, head, at, split, splits);
            sync_first_threads<CONSUMERS>();  // the states may be written again
        }
    }
    // A head group's outputs, merged over warps and splits; each of the splits finishes a part of them.
    __device__ __forceinline__ void put_attended(int row, int head, int at, int split, int splits) const {
        constexpr int OUTPUTS = GROUP * HEAD_DIM;
        if (splits > 1)
#pragma unroll 1
            for (int i = threadIdx.x; i < OUTPUTS; i += CONSUMERS) put_part(exchange, at, i, merge_warps(states, i));
#pragma unroll 1
        for (int i = threadIdx.x; i < OUTPUTS; i += CONSUMERS) {
            const int out = splits > 1 ? split * (OUTPUTS / splits) + i / splits : i;
            const int from = at + (i % splits - split) * PARTIAL_WORDS;
            const float result =
                (splits > 1 ? merge_splits(exchange, from, out, splits) : merge_warps(states, i)).result();
            const float right = __shfl_down_sync(~0u, result, splits);
            if (i % (2 * splits)) continue;
            const int word = AT_ATTENDED + (head * OUTPUTS + out) / 2;
#pragma unroll 1
            for (int slot = 0; slot < MAX_ROWS; slot++)
                if (slots.row_of(slot) == row) exchange.put(word + slot * Q_WORDS, pack<bf16>(result, right));
        }
    }

    // Part `part` of `parts` of what attention will read in the next layer, into L2: while weights are what we wait
    // for.
    __device__ __forceinline__ void prefetch_next_layer(int part, int parts) const {
        if (layer + 1 == step.num_layers) return;
        constexpr int LINES = 2 * PAGE_ELEMENTS / 64;  // of 128 bytes, of a page's keys and values at one head
        if (part == 0 && threadIdx.x < 2) {            // a line of each gain
            const void* gain = address(ADDRESSES + INPUT_NORM + threadIdx.x);
            prefetch_l2(static_cast<const bf16*>(gain) + blockIdx.x % (HIDDEN / 64) * 64);
        }
        const int pair = blockIdx.x / units.most, split = blockIdx.x % units.most;
        if (pair >= units.pairs) return;
        const int row = pair / NUM_KV_HEADS, seq_len = step.seq_lens[row], splits = units.splits(seq_len);
        if (split >= splits) return;
        const Range range(seq_len, split, splits);
        const bf16* cache = reinterpret_cast<const bf16*>(__ldg(step.addresses + (layer + 1) * ADDRESSES + CACHE));
        cache += (size_t)(pair % NUM_KV_HEADS) * 2 * PAGE_ELEMENTS;
#pragma unroll 1
        for (int i = part * CONSUMERS + threadIdx.x; i < (range.end - range.begin) * LINES; i += parts * CONSUMERS) {
            const size_t page = __ldg(step.block_table + row * step.table_width + range.begin + i / LINES);
            prefetch_l2(cache + page * NUM_KV_HEADS * 2 * PAGE_ELEMENTS + i % LINES * 64);
        }
    }
};
