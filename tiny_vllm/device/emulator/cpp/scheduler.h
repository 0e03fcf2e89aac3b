// The threads of one block as fibers, in the order in which a GPU is likeliest to run them: a warp at a time.
//
// Threads start lazily, one after another on the same stack. Only a thread that waits keeps its stack; the next one
// gets another. So a kernel without waits costs no switch, and a block of 1,024 waiting threads costs 1,024 stacks.
#pragma once

namespace emulator {

enum State : uint8_t { kNew, kReady, kAtBarrier, kAtWarp, kExited };

struct Thread {
    uint3 index;
    void* sp;   // where to go on, while it waits
    int stack;  // which stack it keeps, while it waits
};

struct Warp {
    uint32_t ready;    // lanes that can run
    uint32_t exited;   // lanes that returned or never were
    uint32_t arrived;  // lanes that wait in a warp operation (warp.h)
    uint32_t mask[kWarpSize];
    int source[kWarpSize];
    uint64_t value[kWarpSize], result[kWarpSize];
};

static Thread threads[kMaxThreads];
static State states[kMaxThreads];
static Warp warps[kMaxWarps];
static unsigned num_threads, num_warps, current, num_alive;
static void* main_sp;                       // the stack of the OS thread, while fibers run
static void (*kernel_thread)(void** args);  // one CUDA thread's program
static int free_stacks[kMaxThreads], num_free_stacks;
static bool reverse_order;  // a block's threads run from its last to its first

static void barrier_thread_exited();
static void warp_thread_exited(unsigned warp);

static inline unsigned lane_bit(unsigned thread) { return 1u << (thread & 31); }

static inline void make_ready(unsigned thread) {
    states[thread] = kReady;
    warps[thread >> 5].ready |= lane_bit(thread);
}

static inline void make_current(unsigned thread) {
    current = thread;
    threadIdx = threads[thread].index;
    check_thread_runs(thread);
}

// The same from the other end.
static inline int next_ready_reverse(unsigned thread) {
    unsigned warp = thread >> 5, lane = thread & 31;
    if (uint32_t ready = warps[warp].ready) {
        uint32_t earlier = ready & (lane_bit(lane) - 1);
        return warp * 32 + 31 - __builtin_clz(earlier ? earlier : ready);
    }
    for (unsigned i = 1; i < num_warps; i++) {
        unsigned other = warp >= i ? warp - i : warp + num_warps - i;
        if (warps[other].ready) return other * 32 + 31 - __builtin_clz(warps[other].ready);
    }
    return -1;
}

// The next thread that can run, -1 if there is none: later lanes of this warp, its earlier lanes, the following warps.
static inline int next_ready(unsigned thread) {
    if (reverse_order) return next_ready_reverse(thread);
    unsigned warp = thread >> 5, lane = thread & 31;
    if (uint32_t ready = warps[warp].ready) {
        uint32_t later = lane == 31 ? 0 : ready & (~0u << (lane + 1));
        return warp * 32 + __builtin_ctz(later ? later : ready);
    }
    for (unsigned i = 1; i < num_warps; i++) {
        unsigned other = warp + i < num_warps ? warp + i : warp + i - num_warps;
        if (warps[other].ready) return other * 32 + __builtin_ctz(warps[other].ready);
    }
    return -1;
}

static inline unsigned first_ready() {
    unsigned warp = reverse_order ? num_warps - 1 : 0;
    while (!warps[warp].ready) reverse_order ? warp-- : warp++;
    if (reverse_order) return warp * 32 + 31 - __builtin_clz(warps[warp].ready);
    return warp * 32 + __builtin_ctz(warps[warp].ready);
}

[[noreturn]] static void deadlock() {
    check_stuck();
    size_t used = 0, size = sizeof launch->error;
    used += snprintf(launch->error, size, "deadlock in block (%u, %u, %u)", blockIdx.x, blockIdx.y, blockIdx.z);
    for (unsigned t = 0; t < num_threads && used < size - 160; t++) {
        if (states[t] != kAtWarp && states[t] != kAtBarrier) continue;
        const char* where =
            states[t] == kAtBarrier ? "__syncthreads" : "a warp operation whose mask names lanes that never arrive";
        used += snprintf(launch->error + used, size - used, "; thread %u waits at %s", t, where);
        t |= 31;  // one line a warp is enough
    }
    stop(kDeadlock);
}

static void fiber();

// The stack pointer to go on with. A thread that has not started yet takes a fresh stack.
static inline void* stack_pointer(unsigned thread) {
    if (states[thread] != kNew) return threads[thread].sp;
    int stack = free_stacks[--num_free_stacks];
    threads[thread].stack = stack;
    states[thread] = kReady;
    // Stacks lie 64 KiB apart: without a shift they would all compete for the same cache sets.
    char* top = launch->stacks + (size_t)(stack + 1) * kStackBytes - 64 - (stack % 31) * 128;
    return fresh_stack(top, fiber);
}

static inline void switch_to(void** from, unsigned thread) {
    void* to = stack_pointer(thread);
    make_current(thread);
    emulator_switch(from, to);
}

// Leave this thread until somebody makes it ready.
static inline void wait_as(State state) {
    unsigned me = current;
    warps[me >> 5].ready &= ~lane_bit(me);
    states[me] = state;
    int next = next_ready(me);
    if (next < 0) deadlock();
    switch_to(&threads[me].sp, next);
}

EMULATOR_MACHINE static void thread_exited(unsigned me) {
    check_thread_returns(me);
    Warp& warp = warps[me >> 5];
    warp.ready &= ~lane_bit(me);
    warp.exited |= lane_bit(me);
    states[me] = kExited;
    num_alive--;
    if (warp.arrived) warp_thread_exited(me >> 5);
    barrier_thread_exited();
}

// What runs on a stack: one thread after another, until it has to go on with one that kept its own stack.
EMULATOR_MACHINE static void fiber() {
    for (;;) {
        unsigned me = current;
        int stack = threads[me].stack;
        kernel_thread(launch->args);
        thread_exited(me);
        int next = next_ready(me);
        if (next >= 0 && states[next] == kNew) {  // a newcomer takes over this stack: no switch
            threads[next].stack = stack;
            states[next] = kReady;
            make_current(next);
            continue;
        }
        if (next < 0 && num_alive) deadlock();
        free_stacks[num_free_stacks++] = stack;
        void* nowhere;
        if (next < 0) emulator_switch(&nowhere, main_sp);
        else switch_to(&nowhere, next);
    }
}

}  // namespace emulator
