// What happens at each load and store of the kernel: is it inside, was it written, does it race?
#pragma once

#include "counters.h"
#include "words.h"

#define FORCE_INLINE static inline __attribute__((always_inline))

namespace check {

constexpr uint16_t kPoison = 0x7fa5;  // twice in a word: what Emulator.empty fills an array with (check/poison.py)
constexpr uint32_t kPoisonWord = (uint32_t)kPoison << 16 | kPoison;
constexpr Address kNearNull = 1 << 16;

struct Access {
    Address at, pc;
    unsigned size;
    bool write, atomic, global;
};

static Address last_pc;  // for a launch that ends at its deadline

[[noreturn]] void end_launch();

static void describe_place(Finding* f, const Access& x, Address at) {
    f->size = x.size;
    f->writes = x.write;
    f->atomics |= x.atomic;
    if (at - arena < arena_bytes) name_argument(f, at);
    else if (at - box < box_bytes) {
        const Variable& v = variables[variable_of_byte[at - box]];
        if (v.kind == kShared || v.kind == kDynamic || v.kind == kDevice) name_variable(f, v, at);
        else if (const Variable* near = nearest_shared(at)) name_variable(f, *near, at);
    }
}

__attribute__((noinline)) static void report_outside(const Access& x) {
    if (Finding* f = found(kOutOfBounds, x.pc)) describe_place(f, x, x.at);
}

__attribute__((noinline)) static void report_unwritten(const Access& x, Address at, bool in_flight) {
    if (Finding* f = found(in_flight ? kInFlight : kUnwritten, x.pc)) describe_place(f, x, at);
}

// Which other access it meets: `old`, a read or a write.
__attribute__((noinline)) static void report_race(const Access& x, Address at, uint64_t old, uint32_t pc, bool wrote) {
    if (!wrote) withdraw(kUnwritten, pc);  // it was read too early, and not never written
    Finding* f = found(kRace, x.pc, (uint64_t)x.write << 1 | wrote);
    if (!f) return;
    describe_place(f, x, at);
    f->other_writes = wrote;
    if (wrote && old & kAtomic) f->atomics |= 2;
    f->other_block = epoch_of(old) < first_epoch ? block_of(epoch_of(old)) : f->block;
    f->other_thread = thread_of(old);
    if (f->other_block == f->block && f->other_thread == me) f->other_thread = kNobody;
    f->other_frame = pc;
}

// ---- one word, or one byte of a split word

FORCE_INLINE void read_word(Word& w, const Access& x, Address at) {
    uint64_t writer = w.writer;
    if (!x.global && epoch_of(writer) < first_epoch) {
        report_unwritten(x, at, false);
    } else if (writer & kCopying) {
        report_unwritten(x, at, true);
    } else if (!ordered(writer, x.global)) {
        report_race(x, at, writer, w.writer_pc, true);
    }
    uint64_t reader = w.reader;
    if (((reader ^ stamp) >> 4) == 0) return;
    if (reader && !readers_ordered(reader, x.global)) {  // several at one time: the first is remembered
        bool near = epoch_of(reader) == epoch && (thread_of(reader) ^ me) < 32;
        if (thread_of(reader) != me || epoch_of(reader) < first_epoch) w.reader |= near ? kSeveralLanes : kSeveralWarps;
        return;
    }
    w.reader = stamp;
    w.reader_pc = (uint32_t)relative(x.pc);
}

FORCE_INLINE void write_word(Word& w, const Access& x, Address at) {
    uint64_t writer = w.writer;
    bool both_atomic = x.atomic && writer & kAtomic;
    if (!both_atomic && !ordered(writer, x.global)) report_race(x, at, writer, w.writer_pc, true);
    if (w.reader && !readers_ordered(w.reader, x.global)) report_race(x, at, w.reader, w.reader_pc, false);
    w.writer = stamp | (x.atomic ? kAtomic : 0);
    w.writer_pc = (uint32_t)relative(x.pc);
}

FORCE_INLINE void touch(Word& w, const Access& x, Address at) {
    if (x.write) write_word(w, x, at);
    else read_word(w, x, at);
}

// ---- an access, word by word; one that covers a part of a word splits that word for good

__attribute__((noinline)) static void touch_bytes(Word& w, const Access& x, Address from, Address to) {
    if (!is_split(w)) {
        split_words.push_back({{w, w, w, w}});
        w.writer = (uint64_t)launch_epoch << 32 | kSplit;
        w.writer_pc = (uint32_t)split_words.size() - 1;
    }
    Word* byte = split_words[w.writer_pc].byte;
    for (Address a = from; a < to; a++) touch(byte[a & 3], x, a);
}

FORCE_INLINE void touch_words(Word* words, Address origin, const Access& x) {
    Address end = x.at + x.size;
    for (Address at = x.at; at < end;) {
        Address next = (at | 3) + 1;
        Word& w = words[(at - origin) >> 2];
        if ((at & 3) == 0 && next <= end && !is_split(w)) touch(w, x, at);
        else touch_bytes(w, x, at, next < end ? next : end);
        at = next;
    }
}

// ---- where it goes

static inline bool holds_poison(const Access& x) {
    if (x.size == 2) return *(const uint16_t*)x.at == kPoison;
    return x.size >= 4 && *(const uint32_t*)x.at == kPoisonWord;
}

__attribute__((noinline)) static void read_poison(const Access& x) {
    if (x.at & (x.size == 2 ? 1 : 3)) return;
    if (!is_written(arena_words[(x.at - arena) >> 2], x.at)) report_unwritten(x, x.at, false);
}

__attribute__((noinline)) static bool in_a_row(const Region& r, const Access& x) {
    bool holds;
    view_of(r, x.at, x.size, &holds);
    return holds;
}

FORCE_INLINE void touch_argument(const Access& x) {
    const Region& r = regions[(x.at - arena) >> slot_bits];
    if (x.at < r.begin || x.at + x.size > r.end || (r.rows_apart && !in_a_row(r, x))) return report_outside(x);
    if (counting) count_access(x.pc, x.at, x.size, x.write ? kGlobalStore : kGlobalLoad);
    if (r.poisoned && !x.write && holds_poison(x)) read_poison(x);
    if (r.written) touch_words(arena_words, arena, x);
}

static Variable recent;  // the shared variable of the last access; its size is what the launch gives it

// Another variable than the last access had; false where it is none of the kernel's.
__attribute__((noinline)) static bool find_variable(const Access& x) {
    const Variable& v = variables[variable_of_byte[x.at - box]];
    if (v.kind == kGapZone || v.size == 0) {
        if (v.size == 0) return false;
        report_outside(x);
        return true;
    }
    uint64_t size = v.kind == kDynamic ? dynamic_end - v.begin : v.size;
    if (x.at + x.size > v.begin + size) return report_outside(x), true;
    if (v.kind == kDevice) {
        touch_words(box_words, box, x);
        return true;
    }
    recent = v;
    recent.size = size;
    return false;
}

FORCE_INLINE bool touch_shared(const Access& x) {
    if (x.at - recent.begin + x.size > recent.size) {
        if (find_variable(x)) return true;
        if (x.at - recent.begin + x.size > recent.size) return is_quiet(x.at);
    }
    if (counting) count_access(x.pc, x.at, x.size, x.write ? kSharedStore : kSharedLoad);
    Access y = x;
    y.global = false;
    touch_words(box_words, box, y);
    return true;
}

__attribute__((noinline)) static void touch_elsewhere(const Access& x) {
    if (is_quiet(x.at)) return;
    if (Finding* f = found(x.at < kNearNull ? kNullPointer : kOutOfBounds, x.pc)) {
        f->size = x.size;
        f->writes = x.write;
    }
    end_launch();  // there may be no memory there
}

__attribute__((noinline)) static void report_misaligned(const Access& x) {
    if (x.at - arena >= arena_bytes && x.at - box >= box_bytes) return;
    if (Finding* f = found(kMisaligned, x.pc)) describe_place(f, x, x.at);
}

FORCE_INLINE void access(Address at, unsigned size, bool write, Address pc, bool atomic = false) {
    if (!running) return;
    last_pc = pc;
    Access x = {at, pc, size, write, atomic, true};
    if (size <= 16 && at & (size - 1) && !(size & (size - 1))) report_misaligned(x);
    if (at - arena < arena_bytes) touch_argument(x);
    else if (at - box >= box_bytes || !touch_shared(x)) touch_elsewhere(x);
}

}  // namespace check
