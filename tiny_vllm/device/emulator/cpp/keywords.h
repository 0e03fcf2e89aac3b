// CUDA's keywords as macros, and the host's names that NVRTC does not know taken away again.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <type_traits>
#include <utility>

// NVRTC defines none of these: a kernel that uses them must fail here too.
#undef INFINITY
#undef NAN
#undef HUGE_VAL
#undef HUGE_VALF
#undef HUGE_VALL
#undef M_E
#undef M_LN2
#undef M_PI
#undef M_PI_2
#undef M_SQRT2
#undef assert

#define __global__
#define __device__
#define __host__
#define __managed__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

// Shared memory is static data in a section of its own, so that it can be found and filled before each block.
#ifdef __APPLE__
#define EMULATOR_SHARED_SECTION __attribute__((section("__DATA,emu_shared")))
#else
#define EMULATOR_SHARED_SECTION __attribute__((section("emu_shared")))
#endif
#ifdef EMULATOR_CHECK  // a gap in front of each, so that an index which leaves one array does not meet the next
#define EMULATOR_GAP_NAME_(N) emulator_gap_##N
#define EMULATOR_GAP_NAME(N) EMULATOR_GAP_NAME_(N)
#define EMULATOR_GAP \
    static EMULATOR_SHARED_SECTION __attribute__((used, aligned(128))) char EMULATOR_GAP_NAME(__COUNTER__)[256];
#define __shared__ EMULATOR_GAP static EMULATOR_SHARED_SECTION
#else
#define EMULATOR_GAP
#define __shared__ static EMULATOR_SHARED_SECTION
#endif

// The machine's own functions: check mode watches the kernel, not them.
#ifdef EMULATOR_CHECK
#define EMULATOR_MACHINE __attribute__((no_sanitize("thread", "bounds", "alignment"), no_sanitize_coverage))
#else
#define EMULATOR_MACHINE
#endif

#define EMULATOR_EXPORT extern "C" __attribute__((visibility("default")))

// glibc and the C++ compiler own some names that CUDA uses too.
#define rsqrtf emulator_rsqrtf
#define rsqrt emulator_rsqrt
