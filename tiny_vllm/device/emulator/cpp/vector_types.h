// float2, int4, uint3 and their kin, with CUDA's sizes and alignments, and dim3.
#pragma once

#define EMULATOR_VECTOR(T, NAME, ALIGN2, ALIGN4)                              \
    struct NAME##1 { T x; };                                                  \
    struct alignas(ALIGN2) NAME##2 { T x, y; };                               \
    struct NAME##3 { T x, y, z; };                                            \
    struct alignas(ALIGN4) NAME##4 { T x, y, z, w; };                         \
    static inline NAME##1 make_##NAME##1(T x) { return {x}; }                 \
    static inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }         \
    static inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; } \
    static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMULATOR_VECTOR(signed char, char, 2, 4)
EMULATOR_VECTOR(unsigned char, uchar, 2, 4)
EMULATOR_VECTOR(short, short, 4, 8)
EMULATOR_VECTOR(unsigned short, ushort, 4, 8)
EMULATOR_VECTOR(int, int, 8, 16)
EMULATOR_VECTOR(unsigned int, uint, 8, 16)
EMULATOR_VECTOR(long long, longlong, 16, 16)
EMULATOR_VECTOR(unsigned long long, ulonglong, 16, 16)
EMULATOR_VECTOR(float, float, 8, 16)
EMULATOR_VECTOR(double, double, 16, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

#ifdef EMULATOR_CHECK  // under names of their own, so that the kernel's text can see them as constants (check_view.h)
extern "C" {
__attribute__((visibility("hidden"))) uint3 emulator_threadIdx, emulator_blockIdx;
__attribute__((visibility("hidden"))) dim3 emulator_blockDim, emulator_gridDim;
}
#define threadIdx emulator_threadIdx
#define blockIdx emulator_blockIdx
#define blockDim emulator_blockDim
#define gridDim emulator_gridDim
#else
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
#endif
constexpr int warpSize = 32;
