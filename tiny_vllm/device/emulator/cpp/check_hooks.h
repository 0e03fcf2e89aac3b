// Where the machine tells check mode what happens (check/runtime.cpp). Without check mode these are nothing.
#pragma once

#include "launch_record.h"

namespace emulator {

enum { kVote = -1, kFence = -2 };  // in place of a source lane: a vote; __syncwarp, which orders memory too

#ifdef EMULATOR_CHECK
extern "C" {
void check_launch_begins(Launch* launch);
void check_block_begins(unsigned num_threads);
void check_block_ends();
void check_thread_runs(unsigned thread);
void check_thread_returns(unsigned thread);
void check_waits_at_barrier(unsigned thread, void* pc);
void check_barrier_opens();
void check_waits_for_lanes(unsigned thread, uint32_t mask, int source, void* pc);
void check_lanes_met(unsigned warp, uint32_t mask, uint32_t lanes);
void check_stuck();
void check_pause(int on);  // the machine works for the kernel: its accesses are nobody's
void check_reads(const void* address, size_t bytes);
void check_copy_begins(const void* to, size_t bytes);
void check_copy_lands(const void* to, size_t bytes);
}
#else
static inline void check_launch_begins(Launch*) {}
static inline void check_block_begins(unsigned) {}
static inline void check_block_ends() {}
static inline void check_thread_runs(unsigned) {}
static inline void check_thread_returns(unsigned) {}
static inline void check_waits_at_barrier(unsigned, void*) {}
static inline void check_barrier_opens() {}
static inline void check_waits_for_lanes(unsigned, uint32_t, int, void*) {}
static inline void check_lanes_met(unsigned, uint32_t, uint32_t) {}
static inline void check_stuck() {}
static inline void check_pause(int) {}
static inline void check_reads(const void*, size_t) {}
static inline void check_copy_begins(const void*, size_t) {}
static inline void check_copy_lands(const void*, size_t) {}
#endif

}  // namespace emulator
