// The list of what was found, each kind once a place of the program, with a count.
#pragma once

#include <string.h>

#include <unordered_map>

#include "state.h"

namespace check {

enum Kind : int32_t {
    kWithdrawn = -1,
    kOutOfBounds,
    kArrayIndex,  // of an array whose size the compiler knows
    kRace,
    kReturnedBeforeBarrier,
    kDifferentBarriers,
    kUnwritten,
    kInFlight,  // a cp.async is still writing there
    kLaneReturned,
    kLaneNotInMask,
    kCallerNotInMask,
    kLanesNeverCome,
    kStuckAtBarrier,
    kMisaligned,
    kNullPointer,
    kDivisionByZero,
};

constexpr int kFrames = 8;

// One finding, as check/run.py reads it. Threads are numbers in the block; blocks are numbers in the grid.
struct Finding {
    int32_t kind;
    int32_t argument, variable;  // -1: none
    uint32_t size;               // bytes of the access
    int64_t offset;              // bytes from the beginning of the argument or variable; an index; a lane
    int32_t writes, other_writes;
    uint32_t thread, other_thread;  // other: kNobody where it is not known
    uint64_t block, other_block;
    uint32_t mask;
    uint32_t atomics;  // 1: this access is atomic, 2: the other
    uint64_t count;
    uint64_t frames[kFrames], other_frame;  // program counters from the module's start, innermost first
    char text[64];
};

constexpr uint32_t kNobody = ~0u;

static std::vector<Finding> findings;
static std::unordered_map<uint64_t, size_t> found_at;

// Return addresses from the hook that `pc` came from outwards; frame pointers are kept in checked code.
static void walk(Address pc, uint64_t* frames, const void* from) {
    struct Frame {
        const Frame* caller;
        Address return_address;
    };
    int count = 0;
    frames[count++] = relative(pc);
    bool seen = false;
    for (auto* frame = (const Frame*)from; count < kFrames; frame = frame->caller) {
        if ((Address)frame < stacks_begin || (Address)frame >= stacks_end || (Address)frame % sizeof(Address)) break;
        if (seen && frame->return_address) frames[count++] = relative(frame->return_address);
        seen |= frame->return_address == pc;
    }
}

// The finding to fill in, or null where the same was found before.
static Finding* found(Kind kind, Address pc, uint64_t extra = 0) {
    auto [at, fresh] = found_at.try_emplace((relative(pc) << 8 | kind) ^ extra << 40, findings.size());
    if (!fresh) {
        findings[at->second].count++;
        return nullptr;
    }
    Finding f = {};
    f.kind = kind;
    f.argument = f.variable = -1;
    f.thread = me;
    f.block = block_epochs.size() - 1;
    f.other_thread = kNobody;
    f.count = 1;
    walk(pc, f.frames, __builtin_frame_address(0));
    findings.push_back(f);
    return &findings.back();
}

// Another finding explains this one better. pc: from the module's start.
static void withdraw(Kind kind, uint64_t pc) {
    auto at = found_at.find(pc << 8 | kind);
    if (at != found_at.end()) findings[at->second].kind = kWithdrawn;
}

}  // namespace check
