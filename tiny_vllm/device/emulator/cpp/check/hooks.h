// What the compiler's instrumentation calls: -fsanitize=thread before each load and store (libtsan is not linked, these
// stand in its place), and -fsanitize=bounds, alignment, integer-divide-by-zero where one of these goes wrong.
#pragma once

#include <stdio.h>

#include "barriers.h"

#define PC ((Address)__builtin_return_address(0))

extern "C" {

#define CHECK_SIZE(N)                                                            \
    void __tsan_read##N(void* p) { access((Address)p, N, false, PC); }           \
    void __tsan_write##N(void* p) { access((Address)p, N, true, PC); }           \
    void __tsan_unaligned_read##N(void* p) { access((Address)p, N, false, PC); } \
    void __tsan_unaligned_write##N(void* p) { access((Address)p, N, true, PC); } \
    void __tsan_volatile_read##N(void* p) { access((Address)p, N, false, PC); }  \
    void __tsan_volatile_write##N(void* p) { access((Address)p, N, true, PC); }
CHECK_SIZE(1)
CHECK_SIZE(2)
CHECK_SIZE(4)
CHECK_SIZE(8)
CHECK_SIZE(16)

static void range(Address at, size_t size, bool write, Address pc) {
    for (Address end = at + size; at < end;) {
        unsigned piece = at % 16 == 0 ? 16 : 1u << __builtin_ctzll(at);
        while (piece > end - at) piece /= 2;
        access(at, piece, write, pc);
        at += piece;
    }
}
void __tsan_read_range(void* p, size_t size) { range((Address)p, size, false, PC); }
void __tsan_write_range(void* p, size_t size) { range((Address)p, size, true, PC); }
void* __tsan_memcpy(void* to, const void* from, size_t size) {
    range((Address)from, size, false, PC);
    range((Address)to, size, true, PC);
    return memcpy(to, from, size);
}
void* __tsan_memmove(void* to, const void* from, size_t size) {
    range((Address)from, size, false, PC);
    range((Address)to, size, true, PC);
    return memmove(to, from, size);
}
void* __tsan_memset(void* to, int value, size_t size) {
    range((Address)to, size, true, PC);
    return memset(to, value, size);
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void** at, void* value) { *at = value; }

static void atomic_access(Address at, unsigned size, Address pc) {
    access(at, size, true, pc, true);
    if (running && fenced) released.back() = true;
}

#define CHECK_ATOMIC(BITS, T)                                                                               \
    T __tsan_atomic##BITS##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); } \
    void __tsan_atomic##BITS##_store(volatile T* p, T v, int) {                                             \
        atomic_access((Address)p, sizeof(T), PC);                                                           \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                           \
    }                                                                                                       \
    T __tsan_atomic##BITS##_exchange(volatile T* p, T v, int) {                                             \
        atomic_access((Address)p, sizeof(T), PC);                                                           \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                 \
    }                                                                                                       \
    T __tsan_atomic##BITS##_fetch_add(volatile T* p, T v, int) {                                            \
        atomic_access((Address)p, sizeof(T), PC);                                                           \
        return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                                       \
    int __tsan_atomic##BITS##_compare_exchange_strong(volatile T* p, T* c, T v, int, int) {                 \
        atomic_access((Address)p, sizeof(T), PC);                                                           \
        return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);             \
    }                                                                                                       \
    int __tsan_atomic##BITS##_compare_exchange_weak(volatile T* p, T* c, T v, int, int) {                   \
        atomic_access((Address)p, sizeof(T), PC);                                                           \
        return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);             \
    }                                                                                                       \
    T __tsan_atomic##BITS##_compare_exchange_val(volatile T* p, T c, T v, int, int) {                       \
        atomic_access((Address)p, sizeof(T), PC);                                                           \
        __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                   \
        return c;                                                                                           \
    }
CHECK_ATOMIC(16, uint16_t)
CHECK_ATOMIC(32, uint32_t)
CHECK_ATOMIC(64, uint64_t)

void __tsan_atomic_thread_fence(int) { fenced = true; }
void __tsan_atomic_signal_fence(int) {}

// Every block of straight code, in builds that count.
void __sanitizer_cov_trace_pc() {
    if (counting && running) count_access(PC, 0, 0, kInstructions);
}

// ---- what the undefined behaviour sanitizer says of its place

struct TypeName {
    uint16_t kind, info;
    char name[1];
};
struct SourcePlace {
    const char* file;
    uint32_t line, column;
};
struct IndexData {
    SourcePlace place;
    TypeName *array, *index;
};
struct TypeData {
    SourcePlace place;
    TypeName* type;
    unsigned char log_alignment, use;
};

static int64_t signed_value(const TypeName* type, uintptr_t value) {
    unsigned bits = 1u << (type->info >> 1);
    return type->info & 1 && bits < 64 ? (int64_t)(value << (64 - bits)) >> (64 - bits) : (int64_t)value;
}

void __ubsan_handle_out_of_bounds(IndexData* data, uintptr_t index) {
    if (!running) return;
    Finding* f = found(kArrayIndex, PC);
    if (!f) return;
    f->offset = signed_value(data->index, index);
    snprintf(f->text, sizeof f->text, "%s", data->array->name);
}

void __ubsan_handle_type_mismatch_v1(TypeData* data, uintptr_t at) {
    if (!running || at < kNearNull) return;
    Access x = {at, PC, 1u << data->log_alignment, data->use == 1, false, true};
    if (at - arena >= arena_bytes && at - box >= box_bytes) return;
    if (Finding* f = found(kMisaligned, x.pc)) {
        describe_place(f, x, at);
        snprintf(f->text, sizeof f->text, "%s", data->type->name);
    }
}

void __ubsan_handle_divrem_overflow(void*, uintptr_t, uintptr_t) {
    if (!running) return;
    found(kDivisionByZero, PC);
    end_launch();
}
}
