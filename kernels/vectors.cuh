// kernels/vectors.cuh: 16 bytes of neighbours in one load or store, the widest there is.
//
// A thread that moves 2 bytes at a time cannot keep the memory busy; with 16 it asks for eight times as much. The place
// must be a multiple of 16 bytes, so rows have to be a multiple of WIDTH elements long and apart: kernels ask that
// once, for the whole launch, and take element after element where it does not hold.
#pragma once
#include "dtype.cuh"

constexpr int WIDTH = 16 / sizeof(scalar_t);  // 8 elements of 16 bits, 4 floats

struct alignas(16) Vector {
    scalar_t x[WIDTH];
};

__device__ __forceinline__ Vector load(const scalar_t* p) { return *reinterpret_cast<const Vector*>(p); }
__device__ __forceinline__ void store(scalar_t* p, const Vector& v) { *reinterpret_cast<Vector*>(p) = v; }
