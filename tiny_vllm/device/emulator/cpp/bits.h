// Bit patterns, counts, byte permutations, integer dot products, and loads with a cache hint (here plain loads).
#pragma once

namespace emulator {

template <class To, class From>
static inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline uint64_t clock_ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    uint64_t ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}

}  // namespace emulator

static inline int __float_as_int(float x) { return emulator::bit_cast<int>(x); }
static inline unsigned __float_as_uint(float x) { return emulator::bit_cast<unsigned>(x); }
static inline float __int_as_float(int x) { return emulator::bit_cast<float>(x); }
static inline float __uint_as_float(unsigned x) { return emulator::bit_cast<float>(x); }
static inline long long __double_as_longlong(double x) { return emulator::bit_cast<long long>(x); }
static inline double __longlong_as_double(long long x) { return emulator::bit_cast<double>(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }

static inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (x >> i & 1) << (31 - i);
    return reversed;
}

static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
    return (unsigned)((((uint64_t)hi << 32 | lo) << (shift & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (shift & 31));
}

// Byte i of the result is byte (selector >> 4i) & 7 of the eight bytes of b and a; bit 3 asks for its sign instead.
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = selector >> (4 * i), byte = (unsigned)(bytes >> (8 * (pick & 7))) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}

static inline int __dp4a(int a, int b, int sum) {
    for (int i = 0; i < 4; i++) sum += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    return sum;
}

#define EMULATOR_LOAD(NAME)                  \
    template <class T>                       \
    static inline T NAME(const T* address) { \
        return *address;                     \
    }
#define EMULATOR_STORE(NAME)                                           \
    template <class T>                                                 \
    static inline void NAME(T* address, std::common_type_t<T> value) { \
        *address = value;                                              \
    }
EMULATOR_LOAD(__ldg)
EMULATOR_LOAD(__ldca)
EMULATOR_LOAD(__ldcg)
EMULATOR_LOAD(__ldcs)
EMULATOR_LOAD(__ldlu)
EMULATOR_LOAD(__ldcv)
EMULATOR_STORE(__stcg)
EMULATOR_STORE(__stcs)
EMULATOR_STORE(__stwb)
EMULATOR_STORE(__stwt)

static inline long long clock64() { return (long long)emulator::clock_ticks(); }
static inline void __nanosleep(unsigned) {}
