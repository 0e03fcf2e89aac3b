// What the twins of kernels/wgmma.cuh add to: the sums of one warp, which are the machine's while products are on their
// way to them. In the callers' arrays they are NaN meanwhile.
#pragma once

#include "wgmma_operands.h"

#ifdef EMULATOR_CHECK  // as in cuda_emulator.h
#define inline inline __attribute__((always_inline))
#endif

namespace emulator {

constexpr unsigned kMaxSums = 16;           // of one warp, taken at one time
constexpr uint32_t kOnItsWay = 0x7fb0b0b0;  // a signalling NaN: arithmetic makes another one of it

struct Sums {
    unsigned products;  // on their way to these; 0: free
    float* of_lane[kWarpSize];
    float value[16][64];
};

static inline float& sum_at(Sums& sums, int lane, int i) {  // element i of a lane's array
    return sums.value[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
}

EMULATOR_MACHINE static void check_untouched(const Sums& sums) {
    for (const float* of_lane : sums.of_lane)
        for (int i = 0; i < 32; i++)
            if (memcmp(of_lane + i, &kOnItsWay, 4))
                refuse(kAssert, kWgmma, "whose sums were written to before the wait that covers it");
}

EMULATOR_MACHINE static void take_from_lanes(Sums& sums, const LaneOperands* lanes) {
    for (int lane = 0; lane < 32; lane++) {
        sums.of_lane[lane] = lanes[lane].sums;
        for (int i = 0; i < 32; i++) {
            sum_at(sums, lane, i) = lanes[lane].sums[i];
            memcpy(lanes[lane].sums + i, &kOnItsWay, 4);
        }
    }
}

EMULATOR_MACHINE static void give_to_lanes(Sums& sums) {
    check_untouched(sums);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 32; i++) sums.of_lane[lane][i] = sum_at(sums, lane, i);
}

// Those that the lanes mean: taken already, for another product, or now.
EMULATOR_MACHINE static Sums* sums_of(Sums (&all)[kMaxSums], const LaneOperands* lanes) {
    Sums* unused = nullptr;
    for (Sums& each : all) {
        if (!each.products) unused = &each;
        else if (each.of_lane[0] == lanes[0].sums) return check_untouched(each), &each;
    }
    if (!unused) refuse(kAssert, kWgmma, "with 16 arrays of sums of the warp on their way: wait for some");
    return take_from_lanes(*unused, lanes), unused;
}

}  // namespace emulator

#undef inline
