// Shuffles, votes and __syncwarp: the lanes of a mask meet, exchange 8 bytes each, and go on.
#pragma once

namespace emulator {

// In place of a source lane, kVote or kFence: the result is a bit for each lane whose value is not zero.
EMULATOR_MACHINE static uint32_t votes(const Warp& warp, uint32_t lanes) {
    uint32_t bits = 0;
    for (uint32_t left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        if (warp.value[lane]) bits |= 1u << lane;
    }
    return bits;
}

// Complete the exchange among the lanes of `mask` if all of them are here; lanes that exited are not waited for.
EMULATOR_MACHINE static void complete_exchange(unsigned w, uint32_t mask) {
    Warp& warp = warps[w];
    uint32_t lanes = mask & ~warp.exited;
    if ((warp.arrived & lanes) != lanes) return;
    for (uint32_t left = lanes; left; left &= left - 1)
        if (warp.mask[__builtin_ctz(left)] != mask) return;
    check_lanes_met(w, mask, lanes);
    uint32_t bits = votes(warp, lanes);
    for (uint32_t left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctz(left), source = warp.source[lane];
        warp.result[lane] = source < 0 ? bits : warp.value[source];
        if (states[w * 32 + lane] == kAtWarp) make_ready(w * 32 + lane);
    }
    warp.arrived &= ~lanes;
}

static void warp_thread_exited(unsigned w) {
    uint32_t waiting = warps[w].arrived;
    for (uint32_t left = waiting; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        if (warps[w].arrived >> lane & 1) complete_exchange(w, warps[w].mask[lane]);
    }
}

__attribute__((noinline)) EMULATOR_MACHINE static uint64_t exchange(uint32_t mask, uint64_t value, int source) {
    if (!with_fibers) misjudged();
    unsigned me = current, lane = me & 31;
    Warp& warp = warps[me >> 5];
    warp.value[lane] = value;
    warp.source[lane] = source;
    warp.mask[lane] = mask;
    warp.arrived |= 1u << lane;
    check_waits_for_lanes(me, mask, source, __builtin_return_address(0));
    complete_exchange(me >> 5, mask);
    if (warp.arrived >> lane & 1) wait_as(kAtWarp);
    asm volatile("" ::: "memory");
    return warp.result[lane];
}

template <class T>
static inline T shuffle(uint32_t mask, T value, int source) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = exchange(mask, bits, source);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

static inline int lane_id() { return (int)(current & 31); }
static inline int group_begin(int width) { return lane_id() & ~(width - 1); }
static inline int group_end(int width) { return group_begin(width) + width; }

}  // namespace emulator

// A lane that would read outside its group of `width` lanes reads itself.
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return emulator::shuffle(mask, value, emulator::group_begin(width) | (source & (width - 1)));
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    int source = emulator::lane_id() ^ lane_mask;
    return emulator::shuffle(mask, value, source < emulator::group_end(width) ? source : emulator::lane_id());
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    int source = emulator::lane_id() + (int)delta;
    return emulator::shuffle(mask, value, source < emulator::group_end(width) ? source : emulator::lane_id());
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    int source = emulator::lane_id() - (int)delta;
    return emulator::shuffle(mask, value, source >= emulator::group_begin(width) ? source : emulator::lane_id());
}

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return (unsigned)emulator::exchange(mask, predicate != 0, emulator::kVote);
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate == 0) == 0; }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { emulator::exchange(mask, 0, emulator::kFence); }
static inline unsigned __activemask() { return ~emulator::warps[emulator::current >> 5].exited; }
