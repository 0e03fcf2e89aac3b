// kernels/decode_layers_exchange.cuh: how the blocks of decode_layers.cu hand each other activations.
//
// No barrier and no flag: each exchange word is written once a step and holds EMPTY until then, a NaN that no
// arithmetic gives, so the value is its own flag. A reader asks for its words again until all are filled. There are two
// copies of all words, used by steps in turn; who writes a word of one copy empties the same word of the other for the
// next step. A word is two bfloat16 values (of a partial result of attention, one float).
//
// A step has 1 to 8 rows, and products always have 8 columns, so there are always 8 slots. With fewer rows the spare
// slots hold the same rows again: blocks read different slots, and queue less in front of the same lines of L2. Every
// word of every slot is written in every step, whatever the number of its rows, so steps of any sizes may follow each
// other.
#pragma once
#include "decode_layers_shape.cuh"
#include "sm90.cuh"

constexpr unsigned EMPTY = 0xffffffff;
constexpr int PATIENCE = 1 << 23;  // times that a word is asked for, some seconds, before the kernel gives up

// A layer's words: QKV | attended | after attention | activated | after the MLP | partial results of attention, by
// block
constexpr int QKV_WORDS = QKV_COLUMNS / 2, Q_WORDS = Q_COLUMNS / 2, HIDDEN_WORDS = HIDDEN / 2;
constexpr int ACTIVATED_WORDS = INTERMEDIATE / 2;
constexpr int AT_QKV = 0, AT_ATTENDED = AT_QKV + MAX_ROWS * QKV_WORDS, AT_OUT = AT_ATTENDED + MAX_ROWS * Q_WORDS;
constexpr int AT_ACTIVATED = AT_OUT + MAX_ROWS * HIDDEN_WORDS, AT_DOWN = AT_ACTIVATED + MAX_ROWS * ACTIVATED_WORDS;
constexpr int AT_PARTIAL = AT_DOWN + MAX_ROWS * HIDDEN_WORDS;
constexpr int PARTIAL_WORDS = GROUP * (HEAD_DIM + 2);  // sums, then a maximum and a sum of weights for each head

// Which row of the step each slot holds, and which slots this block reads.
struct Slots {
    int rows, spread, first;

    __device__ __forceinline__ explicit Slots(int rows) : rows(rows) {
        spread = rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : 8;
        first = blockIdx.x % (MAX_ROWS / spread) * spread;
    }
    __device__ __forceinline__ int row_of(int slot) const { return min(slot & (spread - 1), rows - 1); }
    __device__ __forceinline__ int to_read(int row) const { return first + (row & (spread - 1)); }
};

__device__ __forceinline__ bool is_filled(const uint4& v) {
    return v.x != EMPTY && v.y != EMPTY && v.z != EMPTY && v.w != EMPTY;
}

// Counts how often a reader has asked: a block that never ran must not keep the GPU for ever.
struct Patience {
    int asked = 0;
    __device__ __forceinline__ void ask_again() {
        if (++asked == PATIENCE) __trap();
    }
};

// Ask for N times four words, `apart` words from one to the next; nothing waits for them yet.
template <int N>
__device__ __forceinline__ void ask_words(uint4 (&v)[N], const unsigned* from, int apart) {
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = load_four_words(from + i * apart);
}
// Ask again for those that were not filled, until all are.
template <int N>
__device__ __forceinline__ void await_words(uint4 (&v)[N], const unsigned* from, int apart) {
    Patience patience;
    for (;;) {
        bool filled = true;
#pragma unroll
        for (int i = 0; i < N; i++) filled &= is_filled(v[i]);
        if (filled) return;
        patience.ask_again();
#pragma unroll
        for (int i = 0; i < N; i++) load_four_words_if(!is_filled(v[i]), v[i], from + i * apart);
    }
}
// The same two, if `wanted`; otherwise v stays as it is.
template <int N>
__device__ __forceinline__ void ask_words_if(bool wanted, uint4 (&v)[N], const unsigned* from, int apart) {
#pragma unroll
    for (int i = 0; i < N; i++) load_four_words_if(wanted, v[i], from + i * apart);
}
template <int N>
__device__ __forceinline__ void await_words_if(bool wanted, uint4 (&v)[N], const unsigned* from, int apart) {
    if (wanted) await_words(v, from, apart);
}
// The same for one word that was asked for before.
__device__ __forceinline__ unsigned await_word(unsigned v, const unsigned* from) {
    for (Patience patience; v == EMPTY; v = load_word(from)) patience.ask_again();
    return v;
}

// One layer's words: of this step, and the same ones of the next.
struct Exchange {
    unsigned *now, *next;
    int layer_words;

    // state[0]: the parity of this step.
    __device__ __forceinline__ Exchange(unsigned* words, const int* state, int num_layers) {
        layer_words = AT_PARTIAL + gridDim.x * PARTIAL_WORDS;
        layer_words += -layer_words & 3;
        const size_t copy = (size_t)num_layers * layer_words;
        now = words + state[0] * copy;
        next = words + (1 - state[0]) * copy;
    }
    __device__ __forceinline__ void advance() { now += layer_words, next += layer_words; }
    __device__ __forceinline__ void put(int i, unsigned word) const {
        store_word(now + i, word);
        next[i] = EMPTY;
    }
};

// The last block to end turns the copies over. One thread a block calls this, when its block is done.
__device__ __forceinline__ void end_step(int* state) {
    if (atomicAdd(state + 1, 1) != gridDim.x - 1) return;
    state[0] ^= 1;
    state[1] = 0;
}
