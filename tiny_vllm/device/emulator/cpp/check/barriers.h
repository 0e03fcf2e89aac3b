// What the machine tells: threads start and end, meet at barriers and in warps. These move the clocks of words.h on.
#pragma once

#include "accesses.h"

namespace check {

enum ThreadState : uint8_t { kRuns, kAtBarrierLine, kInWarpOperation, kReturned };

struct ThreadNote {
    ThreadState state;
    uint32_t mask;
    int source;
    Address pc;  // where it waits
    const void* frame;
};

// The frame of the machine's function, which stays while the thread waits.
#define CALLER (*(const void**)__builtin_frame_address(0))

constexpr int kVoteSource = -1, kFenceSource = -2;  // check_hooks.h

static ThreadNote notes[kMaxThreads];

static void count_all_turns() {
    if (!counting) return;
    for (unsigned w = 0; w * 32 < num_threads; w++) count_turns_of(w);
}

static void next_epoch() {
    count_all_turns();
    epoch++;
    for (unsigned w = 0; w * 32 < num_threads; w++) {
        WarpClock& clock = warp_clocks[w];
        if (clock.some_met) memset(clock.met, 0, sizeof clock.met);
        clock.now = clock.all_met = 0;
        clock.some_met = false;
    }
    set_stamp();
}

static inline void note_wait(unsigned thread, ThreadState state, uint32_t mask, int source, void* pc,
                             const void* caller) {
    ThreadNote& note = notes[thread];
    note.state = state, note.mask = mask, note.source = source, note.pc = (Address)pc;
    note.frame = caller;
}

static Finding* found_at_note(Kind kind, unsigned thread) {
    Finding* f = found(kind, notes[thread].pc);
    if (!f) return nullptr;
    f->thread = thread;
    f->mask = notes[thread].mask;
    walk(notes[thread].pc, f->frames, notes[thread].frame);
    return f;
}

// Everyone who still runs stands at a barrier: at the same one, and was anyone lost on the way?
static void compare_barriers() {
    unsigned first = kNobody, returned = kNobody;
    for (unsigned t = 0; t < num_threads; t++) {
        if (notes[t].state == kReturned && returned == kNobody) returned = t;
        if (notes[t].state != kAtBarrierLine) continue;
        if (first == kNobody) first = t;
        if (notes[t].pc == notes[first].pc) continue;
        if (Finding* f = found_at_note(kDifferentBarriers, t)) {
            f->other_thread = first;
            f->other_frame = relative(notes[first].pc);
        }
    }
    if (returned == kNobody || first == kNobody) return;
    if (Finding* f = found_at_note(kReturnedBeforeBarrier, first)) f->other_thread = returned;
}

static void warp_fence(unsigned warp, uint32_t lanes, bool whole) {
    WarpClock& clock = warp_clocks[warp];
    clock.now++;
    if (whole) {
        clock.all_met = clock.now;
    } else {
        uint32_t joined[32] = {};
        for (unsigned i = 0; i < 32; i++)
            for (unsigned j = 0; lanes >> i & 1 && j < 32; j++) joined[j] = std::max(joined[j], clock.met[i][j]);
        for (unsigned i = 0; i < 32; i++)
            if (lanes >> i & 1) joined[i] = clock.now;
        for (unsigned i = 0; i < 32; i++)
            if (lanes >> i & 1) memcpy(clock.met[i], joined, sizeof joined);
        clock.some_met = true;
    }
    set_stamp();
}

// The lanes of a mask meet: are they all there, and does each read from one that is?
static void inspect_mask(unsigned warp, uint32_t mask, uint32_t lanes) {
    for (uint32_t left = lanes; left; left &= left - 1) {
        unsigned lane = (unsigned)__builtin_ctz(left), thread = warp * 32 + lane;
        const ThreadNote& note = notes[thread];
        Finding* f = nullptr;
        if (uint32_t lost = mask & ~lanes) {
            if ((f = found_at_note(kLaneReturned, thread))) f->offset = __builtin_ctz(lost);
        }
        if (note.source >= 0 && !(mask >> note.source & 1)) {
            if ((f = found_at_note(kLaneNotInMask, thread))) f->offset = note.source;
        }
    }
}

}  // namespace check

using namespace check;

extern "C" {

void check_block_begins(unsigned threads) {
    num_threads = threads;
    memset(notes, 0, threads * sizeof(ThreadNote));
    epoch++;
    next_epoch();
    first_epoch = epoch;
    block_epochs.push_back(epoch);
    released.push_back(false);
    fenced = false;
}

void check_block_ends() {
    running = false;
    next_epoch();
}

void check_thread_runs(unsigned thread) {
    me = thread;
    running = true;
    set_stamp();
}

void check_thread_returns(unsigned thread) { notes[thread].state = kReturned; }

void check_waits_at_barrier(unsigned thread, void* pc) { note_wait(thread, kAtBarrierLine, 0, 0, pc, CALLER); }

void check_barrier_opens() {
    compare_barriers();
    for (unsigned t = 0; t < num_threads; t++)
        if (notes[t].state == kAtBarrierLine) notes[t].state = kRuns;
    next_epoch();
}

void check_waits_for_lanes(unsigned thread, uint32_t mask, int source, void* pc) {
    note_wait(thread, kInWarpOperation, mask, source, pc, CALLER);
    if (mask >> (thread & 31) & 1) return;
    if (Finding* f = found_at_note(kCallerNotInMask, thread)) f->offset = thread & 31;
}

void check_lanes_met(unsigned warp, uint32_t mask, uint32_t lanes) {
    inspect_mask(warp, mask, lanes);
    bool fence = lanes && notes[warp * 32 + (unsigned)__builtin_ctz(lanes)].source == kFenceSource;
    for (uint32_t left = lanes; left; left &= left - 1) notes[warp * 32 + (unsigned)__builtin_ctz(left)].state = kRuns;
    if (counting && mask == ~0u) count_turns_of(warp);
    if (fence) warp_fence(warp, lanes, mask == ~0u);
}

// Nobody can go on: name one waiting thread a line.
void check_stuck() {
    for (unsigned t = 0; t < num_threads; t++) {
        if (notes[t].state == kAtBarrierLine) found_at_note(kStuckAtBarrier, t);
        if (notes[t].state != kInWarpOperation) continue;
        uint32_t absent = notes[t].mask;
        for (unsigned lane = 0; lane < 32; lane++) {
            unsigned other = (t & ~31u) + lane;
            if (other < num_threads && notes[other].state == kInWarpOperation && notes[other].mask == notes[t].mask)
                absent &= ~(1u << lane);
        }
        if (Finding* f = found_at_note(kLanesNeverCome, t)) f->offset = absent ? __builtin_ctz(absent) : -1;
    }
}

void check_pause(int on) { running = !on; }

__attribute__((noinline)) void check_reads(const void* address, size_t bytes) {
    access((Address)address, (unsigned)bytes, false, (Address)__builtin_return_address(0));
}

__attribute__((noinline)) void check_copy_begins(const void* to, size_t bytes) {
    access((Address)to, (unsigned)bytes, true, (Address)__builtin_return_address(0));
    for (Address a = (Address)to; a - box < box_bytes && a < (Address)to + bytes; a += 4)
        box_words[(a - box) >> 2].writer |= kCopying;
}

__attribute__((noinline)) void check_copy_lands(const void* to, size_t bytes) {
    access((Address)to, (unsigned)bytes, true, (Address)__builtin_return_address(0));
}
}
