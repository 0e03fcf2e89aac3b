// Check mode: linked into a kernel that is compiled with instrumentation, in the place of the sanitizers' libraries.
//
//   state.h     what is known of the launch          places.h    where an address lies
//   words.h     who touched a word, and what orders  accesses.h  each load and store
//   barriers.h  barriers and warp operations         counters.h  sectors, banks, lanes
//   findings.h  what was found                       hooks.h     what the compiler's instrumentation calls
// Python (check/run.py) calls the functions below: it describes the memory, runs the launch, and reads the findings.
#include <stdlib.h>

#include "hooks.h"

#include "../launch_record.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" __attribute__((visibility("hidden"))) char __ehdr_start, _end;  // the linker's: the module's two ends

static emulator::Launch* checked_launch;

[[noreturn]] void check::end_launch() {
    running = false;
    checked_launch->stop(emulator::kAssert);
    __builtin_unreachable();
}

EXPORT uint64_t check_module_base() { return (uint64_t)&__ehdr_start; }

// Once a module. count variables, in order of their addresses.
EXPORT int check_variables(const Variable* list, uint64_t count) {
    module_base = (Address)&__ehdr_start;
    module_end = (Address)&_end;
    variables.assign(1, Variable{});
    variables.insert(variables.end(), list, list + count);
    if (!count) return 1;
    box = list[0].begin & ~(Address)3;
    box_bytes = list[count - 1].begin + list[count - 1].size - box;
    variable_of_byte.assign(box_bytes, 0);
    for (size_t i = 1; i < variables.size(); i++)
        for (uint64_t b = 0; b < variables[i].size; b++) variable_of_byte[variables[i].begin - box + b] = (uint16_t)i;
    box_words = (Word*)calloc(box_bytes / 4 + 1, sizeof(Word));
    return box_words != nullptr;
}

// What Python tells of a launch (check/run.py).
struct LaunchNote {
    uint64_t arena, arena_bytes, slot_bits, shadow;  // shadow: room for a Word for each four bytes of the arena
    uint64_t epoch;                                  // above all of earlier launches in this arena
    uint64_t num_regions, num_views, num_ranges;
    uint64_t dynamic_begin, dynamic_bytes, count;
};

// Before a launch. ranges: begin and end of each stretch of the machine's own memory.
EXPORT void check_begin(const LaunchNote* note, const Region* region_list, const View* view_list,
                        const uint64_t* ranges) {
    arena = note->arena, arena_bytes = note->arena_bytes;
    slot_bits = (unsigned)note->slot_bits;
    arena_words = (Word*)note->shadow;
    regions.assign(region_list, region_list + note->num_regions);
    regions.resize((arena_bytes >> slot_bits) + 1, Region{});
    views.assign(view_list, view_list + note->num_views);
    quiet.assign(ranges, ranges + 2 * note->num_ranges);
    dynamic_end = note->dynamic_begin + note->dynamic_bytes;
    findings.clear(), found_at.clear(), split_words.clear(), block_epochs.clear(), released.clear(), clear_counts();
    counting = note->count;
    running = false, recent = Variable{};
    // Another arena counts its launches from the start: what shared memory knows of higher ones would never be past
    if (box_words && note->epoch <= epoch) memset((void*)box_words, 0, (box_bytes / 4 + 1) * sizeof(Word));
    epoch = launch_epoch = (uint32_t)note->epoch;
    memset(warp_clocks, 0, sizeof warp_clocks);
}

// The machine's own call, as a launch starts.
extern "C" void check_launch_begins(emulator::Launch* launch) {
    checked_launch = launch;
    stacks_begin = (Address)launch->stacks;
    stacks_end = stacks_begin + emulator::kMaxThreads * emulator::kStackBytes;
}

EXPORT uint64_t check_findings(const Finding** list) {
    *list = findings.data();
    return findings.size();
}

EXPORT uint64_t check_counts(const Count** list) {
    running = false;
    counts.clear();
    for (auto& each : instructions) counts.push_back(each->count);
    *list = counts.data();
    return counts.size();
}

// Where the launch was when its deadline passed: thread and block are the last that ran.
EXPORT void check_last(uint64_t* thread, uint64_t* block, uint64_t* pc) {
    *thread = me, *pc = relative(last_pc);
    *block = block_epochs.empty() ? 0 : block_epochs.size() - 1;
}

// The epoch after the launch.
EXPORT uint64_t check_end() {
    running = false, arena_bytes = 0;
    return epoch + 1;
}
