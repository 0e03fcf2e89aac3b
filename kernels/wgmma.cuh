// kernels/wgmma.cuh: Hopper's matrix products by four warps together, whose right operand stays in shared memory.
//
// requires: sm_90a
//
// One function an instruction, like ptx.cuh; the emulator has their twins in wgmma_twins.h. sm_90a: only a compilation
// for this very architecture may use them.
//
// A warpgroup, 128 consecutive threads from a multiple of 128 on, multiplies 64 x 16 by 16 x 64 and adds that to 64 x
// 64 sums in registers. Warp w of the group has rows 16w and on. With lane = thread % 32, g = lane / 4, t = lane % 4
// and the warp's rows counted from 0, a lane holds of
//   a  what it holds of a left operand of mma.sync (ptx.cuh): rows g and g+8, columns 2t, 2t+1, 2t+8, 2t+9
//   d  in d[4n..4n+1] row g, columns 8n+2t and 8n+2t+1; in d[4n+2..4n+3] row g+8, the same columns
// The product runs behind the threads' backs. wgmma_begin comes before the first one, after the last ordinary write to
// registers that take part; wgmma_commit makes a group of those begun; until wgmma_wait says that a group is done, its
// sums and its left operand may not be touched, nor its right operand in shared memory.
//
// An operand in shared memory is part of a tile of rows of 64 elements, 128 bytes; chunk c of row r, 16 bytes, is the
// one numbered c ^ (r % 8) of its row, and the tile begins at a multiple of 1,024 bytes. As a right operand its rows
// are the columns of the product and its columns what is summed over, or, transposed, the other way round.
#pragma once
#include "ptx.cuh"

// What the instruction takes for an operand whose first element lies at `address`: 8 rows are 1,024 bytes. From a
// tile's first row on, 16 columns further are 32 bytes, and 8 rows further 1,024.
__device__ __forceinline__ unsigned long long shared_operand(unsigned address) {
    const unsigned long long rows_of_128_bytes = 1ull << 62, eight_rows = 1024 / 16, unused = 1;
    return rows_of_128_bytes | eight_rows << 32 | unused << 16 | (address & 0x3FFFF) / 16;
}

template <class T>
constexpr bool is_half = false;
template <>
constexpr bool is_half<__half> = true;

#ifdef TINY_VLLM_EMULATOR
#include <wgmma_twins.h>
#else

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most PENDING groups, the newest ones, are still running.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// What threads wrote to shared memory themselves, by stores or cp.async, may be read by products behind a barrier.
__device__ __forceinline__ void shared_writes_for_wgmma() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define WGMMA_SUMS                                                                                                    \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
    "%30,%31}"
#define WGMMA_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_SIXTEEN(i) WGMMA_FOUR(i), WGMMA_FOUR(i + 4), WGMMA_FOUR(i + 8), WGMMA_FOUR(i + 12)
#define WGMMA(TYPE)                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " WGMMA_SUMS \
                 ", {%32,%33,%34,%35}, %36, 1, 1, 1, %37;"                                  \
                 : WGMMA_SIXTEEN(0), WGMMA_SIXTEEN(16)                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(TRANSPOSED)))
#define WGMMA_SHARED(TYPE)                                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " WGMMA_SUMS \
                 ", %32, %33, 1, 1, 1, 0, %34;"                                             \
                 : WGMMA_SIXTEEN(0), WGMMA_SIXTEEN(16)                                      \
                 : "l"(a), "l"(b), "n"(int(TRANSPOSED)))

// d += a * b, products of T, __nv_bfloat16 or __half; a in registers, b a shared_operand.
template <class T, bool TRANSPOSED>
__device__ __forceinline__ void wgmma_64x64x16(float (&d)[32], const unsigned (&a)[4], unsigned long long b) {
    if constexpr (is_half<T>) WGMMA("f16");
    else WGMMA("bf16");
}

// The same with a, too, in shared memory: 64 rows of a tile.
template <class T, bool TRANSPOSED>
__device__ __forceinline__ void wgmma_64x64x16(float (&d)[32], unsigned long long a, unsigned long long b) {
    if constexpr (is_half<T>) WGMMA_SHARED("f16");
    else WGMMA_SHARED("bf16");
}
#endif
