// What Python hands to a launch, and the reasons for which one ends. Kernels and guard.cpp include it; launch.py packs
// the same fields in the same order.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace emulator {

constexpr unsigned kMaxThreads = 1024, kWarpSize = 32, kMaxWarps = kMaxThreads / kWarpSize;
constexpr size_t kStackBytes = 64 * 1024;  // of one CUDA thread that waits

enum Reason : int {
    kDone,
    kTrap,            // __trap()
    kAssert,          // assert() failed
    kDeadlock,        // every thread waits
    kTimeout,         // the watchdog's deadline
    kIllegalAddress,  // SIGSEGV, SIGBUS
    kDivision,        // SIGFPE: an integer division by zero
    kIllegalInstruction,
    kMisaligned,  // an address that an instruction of ptx.cuh cannot take
};

struct Launch {
    uint32_t grid[3], block[3];
    uint64_t num_blocks;
    uint64_t dynamic_shared_bytes;
    void** args;
    uint64_t* next_block;      // shared by all copies of the kernel that work on this launch
    char* stacks;              // set by guard.cpp: kMaxThreads stacks that belong to this OS thread
    void (*stop)(int reason);  // set by guard.cpp: leaves the launch at once, from whatever stack
    const char* printed;       // what the kernel's printf wrote
    uint64_t printed_bytes;
    uint64_t fault_address;  // set by guard.cpp; the program counter of a launch that passed its deadline
    char error[512];
};

}  // namespace emulator
