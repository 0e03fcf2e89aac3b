// The launch that this copy works on: its next block, its shared memory, and how it ends early.
#pragma once

#include "launch_record.h"

namespace emulator {

constexpr size_t kMaxDynamicShared = 228 * 1024;

static Launch* launch;
static bool with_fibers;  // false: this launch's blocks are plain loops
#ifdef EMULATOR_CHECK
constexpr size_t kDynamicGap = 4096;
#else
constexpr size_t kDynamicGap = 0;
#endif
alignas(1024) static char dynamic_space[kDynamicGap + kMaxDynamicShared + kDynamicGap];
static char* const dynamic_shared = dynamic_space + kDynamicGap;
static uint64_t blocks_begun;  // by this copy since it was loaded

[[noreturn]] static void stop(Reason reason) {
    launch->stop(reason);
    __builtin_unreachable();
}

// A kernel that waits was started as a plain loop: waits.py read its text wrongly.
[[noreturn]] static void misjudged() {
    snprintf(launch->error, sizeof launch->error,
             "a wait that the emulator did not see in the text; put it into a function");
    stop(kDeadlock);
}

// The next block for this copy to run; false when none is left.
static inline bool take_block() {
    uint64_t b = __atomic_fetch_add(launch->next_block, 1, __ATOMIC_RELAXED);
    if (b >= launch->num_blocks) return false;
    blockIdx.x = (unsigned)(b % gridDim.x);
    blockIdx.y = (unsigned)(b / gridDim.x % gridDim.y);
    blockIdx.z = (unsigned)(b / gridDim.x / gridDim.y);
    return true;
}

static inline void begin(Launch* l, bool fibers) {
    launch = l;
    with_fibers = fibers;
    gridDim = dim3(l->grid[0], l->grid[1], l->grid[2]);
    blockDim = dim3(l->block[0], l->block[1], l->block[2]);
    check_launch_begins(l);
}

// Where static shared memory lies. The linker knows the two ends of a section by name.
#ifdef __APPLE__
extern char shared_begin[] asm("section$start$__DATA$emu_shared");
extern char shared_end[] asm("section$end$__DATA$emu_shared");
#else
extern "C" __attribute__((weak, visibility("hidden"))) char __start_emu_shared[], __stop_emu_shared[];
static char* const shared_begin = __start_emu_shared;
static char* const shared_end = __stop_emu_shared;
#endif

// Shared memory starts with anything in it; here with NaN, so that a kernel which reads before it writes shows it.
static inline void poison_shared() {
    blocks_begun++;
    if (shared_begin != shared_end) memset(shared_begin, 0xFF, shared_end - shared_begin);
    if (launch->dynamic_shared_bytes) memset(dynamic_shared, 0xFF, launch->dynamic_shared_bytes);
}

}  // namespace emulator

static inline void __trap() { emulator::stop(emulator::kTrap); }
#define EMULATOR_TEXT_(x) #x
#define EMULATOR_TEXT(x) EMULATOR_TEXT_(x)
#define assert(condition)                                                                                             \
    ((condition) ? (void)0                                                                                            \
                 : (snprintf(emulator::launch->error, sizeof emulator::launch->error, "%s:%d: assertion `%s` failed", \
                             __FILE__, __LINE__, #condition),                                                         \
                    emulator::stop(emulator::kAssert)))
