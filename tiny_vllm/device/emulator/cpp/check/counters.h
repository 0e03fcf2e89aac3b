// Counters: what each load and store of the text asks of the memory, warp by warp.
//
// A GPU runs 32 lanes in step; the emulator runs them one after another. So the k-th time that a lane comes to an
// instruction since the last barrier is put together with the k-th time of the other lanes: one request of the warp.
// In loops that lanes leave at different times this is what a GPU does; where lanes skip turns it is an estimate.
#pragma once

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "state.h"

namespace check {

enum CountKind : int32_t { kGlobalLoad, kGlobalStore, kSharedLoad, kSharedStore, kInstructions };

constexpr unsigned kSector = 32, kBanks = 32;
constexpr uint32_t kMostTurns = 1 << 14;  // of one instruction between barriers; later ones are not counted

// What check/counts.py reads, one for each instruction.
struct Count {
    uint64_t pc;
    int32_t kind;
    uint32_t size;  // bytes a lane
    uint64_t requests, lanes, sectors, ideal, ways, phases;
    uint32_t example_mask, pad;
    uint64_t example[32];  // addresses of the first request
};

struct Request {
    uint32_t mask, size;
    Address address[32];
};

// One instruction of the text.
struct Instruction {
    Address pc;
    Count count;
    uint32_t turn[kMaxThreads];  // how often each thread came here
    std::vector<Request> requests[kMaxWarps];
};

static bool counting;
static std::vector<std::unique_ptr<Instruction>> instructions;
static std::unordered_map<Address, Instruction*> instruction_of_pc;
static Instruction* recent_instructions[1024];  // by some bits of the program counter
static std::vector<Count> counts;               // of all, for Python

__attribute__((noinline)) static Instruction* find_instruction(Address pc, CountKind kind) {
    Instruction*& found = instruction_of_pc[pc];
    if (!found) {
        instructions.push_back(std::make_unique<Instruction>());
        found = instructions.back().get();
        found->pc = pc;
        found->count.pc = relative(pc);
        found->count.kind = kind;
    }
    return recent_instructions[pc % 1024] = found;
}

static void count_access(Address pc, Address at, unsigned size, CountKind kind) {
    Instruction* i = recent_instructions[pc % 1024];
    if (!i || i->pc != pc) i = find_instruction(pc, kind);
    uint32_t turn = i->turn[me]++;
    auto& list = i->requests[me >> 5];
    if (turn >= list.size()) {
        if (turn >= kMostTurns) return;
        list.push_back({});
    }
    Request& r = list[turn];
    r.mask |= 1u << (me & 31);
    r.size = size;
    r.address[me & 31] = at;
}

// Sectors of 32 bytes that the lanes touch, and the fewest that their bytes would fit in.
static void add_sectors(Count& c, const Request& r) {
    Address firsts[32];
    unsigned num_lanes = 0, different = 0;
    for (uint32_t left = r.mask; left; left &= left - 1) firsts[num_lanes++] = r.address[__builtin_ctz(left)];
    if (!std::is_sorted(firsts, firsts + num_lanes)) std::sort(firsts, firsts + num_lanes);
    Address next_sector = 0;  // the first that is not counted yet
    for (unsigned i = 0; i < num_lanes; i++) {
        if (i && firsts[i] == firsts[i - 1]) continue;
        different++;
        Address first = std::max(firsts[i] / kSector, next_sector), last = (firsts[i] + r.size - 1) / kSector;
        if (last >= first) c.sectors += last - first + 1, next_sector = last + 1;
    }
    c.ideal += (different * r.size + kSector - 1) / kSector;
}

// How many different words of one bank the lanes want at most. 8 bytes a lane go by halves of a warp, 16 by quarters.
static void add_ways(Count& c, const Request& r) {
    unsigned lanes_at_once = r.size >= 16 ? 8 : r.size >= 8 ? 16 : 32, words = r.size >= 4 ? r.size / 4 : 1;
    for (unsigned first = 0; first < 32; first += lanes_at_once) {
        Address wanted[kBanks][32];
        unsigned count[kBanks] = {}, most = 0;
        for (unsigned lane = first; lane < first + lanes_at_once; lane++) {
            if (!(r.mask >> lane & 1)) continue;
            for (unsigned i = 0; i < words; i++) {
                Address word = r.address[lane] / 4 + i;
                unsigned bank = word % kBanks, at = 0;
                while (at < count[bank] && wanted[bank][at] != word) at++;
                if (at == count[bank]) wanted[bank][count[bank]++] = word;
                most = std::max(most, count[bank]);
            }
        }
        if (most) c.ways += most, c.phases++;
    }
}

static void add_request(Count& c, const Request& r) {
    if (!c.requests) {
        c.example_mask = r.mask;
        std::copy(r.address, r.address + 32, c.example);
    }
    c.requests++;
    c.lanes += (unsigned)__builtin_popcount(r.mask);
    c.size = r.size;
    if (c.kind == kGlobalLoad || c.kind == kGlobalStore) add_sectors(c, r);
    else if (c.kind != kInstructions) add_ways(c, r);
}

// At a barrier, and where a whole warp meets: what came before and what comes after are different requests.
static void count_turns_of(unsigned warp) {
    for (auto& i : instructions) {
        if (i->requests[warp].empty()) continue;
        for (const Request& r : i->requests[warp]) add_request(i->count, r);
        i->requests[warp].clear();
        std::fill_n(i->turn + warp * 32, 32, 0);
    }
}

static void clear_counts() {
    instructions.clear(), instruction_of_pc.clear();
    std::fill_n(recent_instructions, 1024, nullptr);
}

}  // namespace check
