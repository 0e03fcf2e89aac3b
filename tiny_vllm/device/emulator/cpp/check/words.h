// Shadow memory: for each word of four bytes who wrote it last and who read it, and the rules for two that meet.
//
// Two accesses of one place, one of them a write, are a race unless something orders them: the same thread, a barrier
// between (another epoch), a __syncwarp that both took part in, both atomic; between blocks nothing does but a
// __threadfence and an atomic operation in either block.
#pragma once

#include <deque>

#include "places.h"

namespace check {

// epoch << 32 | thread << 22 | clock << 4 | flags
constexpr uint64_t kAtomic = 1, kSeveralLanes = 1, kSeveralWarps = 2, kSplit = 4, kCopying = 8;
constexpr uint32_t kLastClock = (1u << 18) - 1;

static inline uint32_t epoch_of(uint64_t s) { return (uint32_t)(s >> 32); }
static inline unsigned thread_of(uint64_t s) { return s >> 22 & 1023; }
static inline uint32_t clock_of(uint64_t s) { return s >> 4 & kLastClock; }

struct Word {
    uint64_t writer, reader;
    uint32_t writer_pc, reader_pc;
};

struct SplitWord {
    Word byte[4];
};

// Both keep what earlier launches left, which is told by its epochs.
static Word *arena_words, *box_words;
static std::deque<SplitWord> split_words;  // of words that are accessed by parts; Word.writer_pc is the number

static inline bool is_split(const Word& w) { return w.writer & kSplit && epoch_of(w.writer) >= launch_epoch; }
static inline bool is_written(const Word& w, Address at) {
    uint64_t writer = is_split(w) ? split_words[w.writer_pc].byte[at & 3].writer : w.writer;
    return epoch_of(writer) >= launch_epoch;
}

// ---- what orders the lanes of a warp

struct WarpClock {
    uint32_t now, all_met;  // counts __syncwarp; the last that every lane took part in
    bool some_met;
    uint32_t met[32][32];  // met[i][j]: the last that orders lane j's past before lane i
};

static WarpClock warp_clocks[kMaxWarps];

static inline void set_stamp() {
    uint32_t clock = warp_clocks[me >> 5].now;
    stamp = (uint64_t)epoch << 32 | (uint64_t)me << 22 | (clock < kLastClock ? clock : kLastClock) << 4;
}

static inline bool warp_orders(unsigned other, uint32_t clock) {
    const WarpClock& w = warp_clocks[me >> 5];
    return w.all_met > clock || (w.some_met && w.met[me & 31][other & 31] > clock);
}

// ---- what orders blocks

static std::vector<bool> released;  // by block: it did a __threadfence, then an atomic operation
static bool fenced;

static size_t block_of(uint32_t e) {
    size_t low = 0, high = block_epochs.size();
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (block_epochs[middle] <= e) low = middle;
        else high = middle;
    }
    return low;
}

static inline bool blocks_ordered(uint32_t e) { return !released.empty() && released.back() && released[block_of(e)]; }

static inline bool ordered(uint64_t old, bool global) {
    uint32_t e = epoch_of(old);
    if (e < first_epoch) return !global || e < launch_epoch || blocks_ordered(e);
    if (e != epoch) return true;
    unsigned other = thread_of(old);
    return other == me || ((other ^ me) < 32 && warp_orders(other, clock_of(old)));
}

static inline bool readers_ordered(uint64_t old, bool global) {
    if (epoch_of(old) != epoch || !(old & 3)) return ordered(old, global);
    if (old & kSeveralWarps || (thread_of(old) ^ me) >= 32) return false;
    return warp_clocks[me >> 5].all_met > clock_of(old);
}

}  // namespace check
