// kernels/dtype.cuh: the element type, chosen when a kernel is compiled.
//
// Weights, activations and the KV cache hold scalar_t: float, __nv_bfloat16 or __half, given by -DSCALAR=...
// Kernels read with float(x), compute in float and write with scalar_t(y), which rounds to nearest even; the two
// conversions are spelled the same for all three types. Sums are never kept in scalar_t: bfloat16 has 8 bits of
// precision, half ends at 65,504.
// The only other thing fixed at compile time is HEAD_DIM, in kernels that hold a head in registers or shared memory.
// A file that uses HEAD_DIM says so with #ifndef HEAD_DIM / #error; all other files are compiled once for every model.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef SCALAR
#define SCALAR float
#endif
typedef SCALAR scalar_t;

// Four neighbours in one load of 8 or 16 bytes; p is a multiple of four elements from the start of an array.
struct alignas(4 * sizeof(scalar_t)) scalar4 {
    scalar_t x[4];
};
__device__ __forceinline__ scalar4 load4(const scalar_t* p) { return *reinterpret_cast<const scalar4*>(p); }
