// What check mode knows of the launch that runs: its memory, its threads, and who touched a word last.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace check {

using Address = uintptr_t;

// ---- what Python describes (check/memory.py packs the same fields in the same order)

// An argument's part of a region: rows of `width` bytes, `stride` bytes apart.
struct View {
    Address begin, end;
    uint64_t stride, width;
    uint32_t item;  // bytes of an element
    int32_t argument;
};

// A span of the arena that one argument, or several which overlap, lie in.
struct Region {
    Address begin, end;
    uint32_t first_view, num_views;
    uint16_t rows_apart;  // some byte of it may belong to no argument
    uint16_t written;     // an argument of it is not const
    uint32_t poisoned;    // it is from device.empty
};

enum VariableKind : uint32_t { kShared, kGapZone, kDynamic, kDevice };

// A static variable of the kernel's text, or the gap in front of one.
struct Variable {
    Address begin;
    uint64_t size;
    uint32_t kind, number;
};

// ---- threads and time

constexpr unsigned kMaxThreads = 1024, kMaxWarps = 32;

static bool running;           // the kernel's own code runs: not the machine's, between blocks or for the kernel
static unsigned me;            // the thread that runs
static unsigned num_threads;   // of the block
static uint32_t epoch;         // counts barriers and blocks: accesses of two epochs of a block are in order
static uint32_t first_epoch;   // of the block that runs
static uint32_t launch_epoch;  // the launch's first: what is older was another launch
static uint64_t stamp;         // epoch, thread and warp clock, as a Word keeps them
static std::vector<uint32_t> block_epochs;  // the first epoch of each block so far

// ---- memory

static Address module_base, module_end, stacks_begin, stacks_end;
static std::vector<Address> quiet;  // begin, end, ...: the machine's own memory outside the module

static inline Address relative(Address pc) { return pc - module_base; }

}  // namespace check
