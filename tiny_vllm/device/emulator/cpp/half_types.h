// The two 16-bit floating-point types: conversions, and arithmetic that both have (in float, rounded once).
// Included by <cuda_fp16.h> and <cuda_bf16.h> only: NVRTC does not know the types without them either.
#pragma once

namespace emulator {

static inline float bfloat16_float(uint16_t bits) { return bit_cast<float>((uint32_t)bits << 16); }

static inline uint16_t bfloat16_bits(float x) {
    uint32_t bits = bit_cast<uint32_t>(x);
    if (x != x) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}

#if defined(__aarch64__) && !defined(EMULATOR_PORTABLE_HALF)

static inline float half_float(uint16_t bits) { return (float)bit_cast<__fp16>(bits); }
static inline uint16_t half_bits(float x) { return x != x ? 0x7fff : bit_cast<uint16_t>((__fp16)x); }

#elif defined(__F16C__) && (__GNUC__ >= 12 || __clang_major__ >= 15) && !defined(EMULATOR_PORTABLE_HALF)

static inline float half_float(uint16_t bits) { return (float)bit_cast<_Float16>(bits); }
static inline uint16_t half_bits(float x) { return x != x ? 0x7fff : bit_cast<uint16_t>((_Float16)x); }

#else  // older compilers have no such type in C++

static inline float half_float(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 31) return bit_cast<float>(sign | 0x7f800000 | fraction << 13);
    if (exponent) return bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
    float tiny = (float)fraction * 0x1p-24f;
    return sign ? -tiny : tiny;
}

static inline uint16_t half_bits(float x) {
    uint32_t bits = bit_cast<uint32_t>(x), sign = bits >> 16 & 0x8000;
    float magnitude = fabsf(x);
    if (x != x) return 0x7fff;
    if (magnitude >= 65520.0f) return (uint16_t)(sign | 0x7c00);
    // Below 2^-14 a half is a multiple of 2^-24: adding 0.5 makes the float's own rounding drop the other bits.
    if (magnitude < 0x1p-14f) return (uint16_t)(sign | (bit_cast<uint32_t>(magnitude + 0.5f) - 0x3f000000));
    uint32_t rebiased = (bits & 0x7fffffff) - (112u << 23);
    return (uint16_t)(sign | (rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13);
}

#endif

}  // namespace emulator

// CODE is the letter by which entry.h tells Python the type.
#define EMULATOR_HALF_TYPES(T, T2, CODE, TO_BITS, TO_FLOAT)                                               \
    struct T {                                                                                            \
        static constexpr char emulator_code = CODE;                                                       \
        uint16_t bits;                                                                                    \
        T() = default;                                                                                    \
        T(float x) : bits(TO_BITS(x)) {}                                                                  \
        T(double x) : T((float)x) {}                                                                      \
        T(int x) : T((float)x) {}                                                                         \
        T(unsigned x) : T((float)x) {}                                                                    \
        T(long long x) : T((float)x) {}                                                                   \
        T(unsigned long long x) : T((float)x) {}                                                          \
        operator float() const { return TO_FLOAT(bits); }                                                 \
        static T from_bits(uint16_t bits) {                                                               \
            T x;                                                                                          \
            x.bits = bits;                                                                                \
            return x;                                                                                     \
        }                                                                                                 \
    };                                                                                                    \
    struct alignas(4) T2 {                                                                                \
        T x, y;                                                                                           \
    };                                                                                                    \
    EMULATOR_HALF_OPERATOR(T, T2, +)                                                                      \
    EMULATOR_HALF_OPERATOR(T, T2, -)                                                                      \
    EMULATOR_HALF_OPERATOR(T, T2, *)                                                                      \
    EMULATOR_HALF_OPERATOR(T, T2, /)                                                                      \
    EMULATOR_HALF_COMPARE(T, ==)                                                                          \
    EMULATOR_HALF_COMPARE(T, !=)                                                                          \
    EMULATOR_HALF_COMPARE(T, <)                                                                           \
    EMULATOR_HALF_COMPARE(T, >)                                                                           \
    EMULATOR_HALF_COMPARE(T, <=)                                                                          \
    EMULATOR_HALF_COMPARE(T, >=)                                                                          \
    static inline T operator-(T a) { return T::from_bits(a.bits ^ 0x8000); }                              \
    static inline T __hadd(T a, T b) { return a + b; }                                                    \
    static inline T __hsub(T a, T b) { return a - b; }                                                    \
    static inline T __hmul(T a, T b) { return a * b; }                                                    \
    static inline T __hdiv(T a, T b) { return a / b; }                                                    \
    static inline T __hneg(T a) { return -a; }                                                            \
    static inline T __habs(T a) { return T::from_bits(a.bits & 0x7fff); }                                 \
    static inline T __hfma(T a, T b, T c) { return T((double)(float)a * (float)b + (float)c); }           \
    static inline T __hmax(T a, T b) { return T(fmaxf(a, b)); }                                           \
    static inline T __hmin(T a, T b) { return T(fminf(a, b)); }                                           \
    static inline bool __hgt(T a, T b) { return a > b; }                                                  \
    static inline bool __hge(T a, T b) { return a >= b; }                                                 \
    static inline bool __hlt(T a, T b) { return a < b; }                                                  \
    static inline bool __hle(T a, T b) { return a <= b; }                                                 \
    static inline bool __heq(T a, T b) { return a == b; }                                                 \
    static inline bool __hne(T a, T b) { return a != b; }                                                 \
    static inline bool __hisnan(T a) { return (float)a != (float)a; }                                     \
    static inline T2 __hadd2(T2 a, T2 b) { return a + b; }                                                \
    static inline T2 __hsub2(T2 a, T2 b) { return a - b; }                                                \
    static inline T2 __hmul2(T2 a, T2 b) { return a * b; }                                                \
    static inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                 \
    static inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                 \
    static inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
    static inline float __low2float(T2 v) { return (float)v.x; }                                          \
    static inline float __high2float(T2 v) { return (float)v.y; }

#define EMULATOR_HALF_OPERATOR(T, T2, OP)                                         \
    static inline T operator OP(T a, T b) { return T((float)a OP(float) b); }     \
    static inline T& operator OP## = (T & a, T b) { return a = a OP b; }          \
    static inline T2 operator OP(T2 a, T2 b) { return {a.x OP b.x, a.y OP b.y}; } \
    static inline T2& operator OP## = (T2 & a, T2 b) { return a = a OP b; }

#define EMULATOR_HALF_COMPARE(T, OP) \
    static inline bool operator OP(T a, T b) { return (float)a OP(float) b; }
