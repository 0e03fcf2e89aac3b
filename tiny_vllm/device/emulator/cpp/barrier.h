// __syncthreads and its counting forms, and memory fences.
#pragma once

namespace emulator {

static unsigned num_waiting;  // threads that stand at the barrier
static int true_votes, vote_result;

static void reset_barrier() { num_waiting = 0, true_votes = 0; }

EMULATOR_MACHINE static void release_barrier() {
    check_barrier_opens();
    for (unsigned t = 0; t < num_threads; t++)
        if (states[t] == kAtBarrier) make_ready(t);
    num_waiting = 0;
    vote_result = true_votes;
    true_votes = 0;
}

// As on a GPU, a barrier waits for the threads that still run.
static void barrier_thread_exited() {
    if (num_waiting && num_waiting == num_alive) release_barrier();
}

__attribute__((noinline)) EMULATOR_MACHINE static int sync_threads(bool vote) {
    unsigned me = current;
    if (!with_fibers) misjudged();
    true_votes += vote;
    check_waits_at_barrier(me, __builtin_return_address(0));
    if (++num_waiting < num_alive) {
        wait_as(kAtBarrier);
    } else {  // the last to arrive: the block goes on from its first thread
        states[me] = kAtBarrier;
        release_barrier();
        unsigned first = first_ready();
        if (first != me) switch_to(&threads[me].sp, first);
    }
    asm volatile("" ::: "memory");
    return vote_result;  // stays until every thread has come to the next barrier
}

}  // namespace emulator

static inline void __syncthreads() { emulator::sync_threads(false); }
static inline int __syncthreads_count(int predicate) { return emulator::sync_threads(predicate != 0); }
static inline int __syncthreads_or(int predicate) { return emulator::sync_threads(predicate != 0) != 0; }
static inline int __syncthreads_and(int predicate) { return emulator::sync_threads(predicate == 0) == 0; }

// Blocks run on several OS threads, so these are real.
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
