// Maths beyond the C library's: CUDA's fast forms (here as exact as the plain ones), rounding modes, min and max.
#pragma once

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rsqrt(float x) { return 1.0f / sqrtf(x); }

// The C library declares most of these names for itself, so they are macros.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __powf powf
#define __sincosf(x, s, c) emulator_sincosf(x, s, c)

static inline void emulator_sincosf(float x, float* sine, float* cosine) {
    *sine = sinf(x);
    *cosine = cosf(x);
}

static inline float fdividef(float a, float b) { return a / b; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }

static inline int __float2int_rn(float x) { return (int)lrintf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline int __float2int_rd(float x) { return (int)floorf(x); }
static inline int __float2int_ru(float x) { return (int)ceilf(x); }
static inline unsigned __float2uint_rn(float x) { return (unsigned)llrintf(x); }
static inline unsigned __float2uint_rz(float x) { return (unsigned)x; }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }

// fminf and fmaxf ignore a NaN, as CUDA's min and max on floats do.
template <class T, class U>
static inline std::common_type_t<T, U> min(T a, U b) {
    using C = std::common_type_t<T, U>;
    if constexpr (std::is_floating_point_v<C>) return (C)fmin((C)a, (C)b);
    else return (C)a < (C)b ? (C)a : (C)b;
}
template <class T, class U>
static inline std::common_type_t<T, U> max(T a, U b) {
    using C = std::common_type_t<T, U>;
    if constexpr (std::is_floating_point_v<C>) return (C)fmax((C)a, (C)b);
    else return (C)a > (C)b ? (C)a : (C)b;
}
