// kernels/ptx.cuh: the inline PTX of this project: the few instructions that CUDA C has no words for. What only Hopper
// has is in sm90.cuh and wgmma.cuh.
//
// requires: sm_80
//
// One function an instruction, and a closed list: a kernel that needs another one adds it here, and its twin, plain
// C++, to the emulator's ptx_twins.h, so that every kernel also runs where there is no GPU.
//
// A warp works as one in ldmatrix and mma. With lane = thread % 32, g = lane / 4, t = lane % 4, a lane holds of
//   a 16x16 (left operand)    a[0]: row g, columns 2t, 2t+1      a[1]: row g+8, the same columns
//                             a[2]: row g, columns 2t+8, 2t+9    a[3]: row g+8, those columns
//   b 16x8  (right operand)   b0: rows 2t, 2t+1 of column g      b1: rows 2t+8, 2t+9 of column g
//   d 16x8  (the sum)         d[0..1]: row g, columns 2t, 2t+1   d[2..3]: row g+8, the same columns
// 16-bit elements travel in pairs, one 32-bit word for two, the element with the lower index in the low half.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifdef TINY_VLLM_EMULATOR
#include <ptx_twins.h>
#else

// A place in shared memory as the 32-bit number that ldmatrix and cp.async take.
__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Begin to copy 16 bytes from global to shared memory, past the registers and L1; both places are multiples of 16.
// Not valid: zeros are written and nothing is read. What arrives may be read after commit, wait and a barrier.
__device__ __forceinline__ void cp_async_16(unsigned to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

// The same, always valid, where the rest of the 128 bytes is soon wanted too: L2 asks the memory for all of them.
__device__ __forceinline__ void cp_async_16_of_128(unsigned to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The copies that this thread began since its last commit become a group.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most PENDING of this thread's groups, the newest ones, are still on their way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four 8x8 matrices. Lane i gives the address of row i % 8 of matrix i / 8, 16 bytes; it receives in r[m] of matrix m
// row g, columns 2t and 2t+1: in the order top left, bottom left, top right, bottom right that is an operand a.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// The same of the transposed matrices: r[m] is column g, rows 2t and 2t+1, half of an operand b.
__device__ __forceinline__ void ldmatrix_x4_transposed(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// d += a * b on the tensor cores: 16x8 sums in float32, products of T, __nv_bfloat16 or __half.
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

template <>
__device__ __forceinline__ void mma_16x8x16<__nv_bfloat16>(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                                           unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_16x8x16<__half>(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes of global memory that this kernel reads once and nobody writes: not kept in L1.
__device__ __forceinline__ uint4 load_once(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// Ask for the 128 bytes around p to be brought into L2; any address of global memory that is mapped will do.
__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Programmatic dependent launch, which Hopper began; before it, and in a launch that does not ask for it, these two do
// nothing. A kernel launched so may begin once every block of the one before it has called launch_next_kernel or ended.
__device__ __forceinline__ void launch_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Wait until the kernel before this one has ended and all that it wrote can be seen. Whatever an earlier kernel of the
// step writes may be read, and anything may be written, only after this.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif

// Two floats rounded to T, as a pair.
template <class T>
__device__ __forceinline__ unsigned pack(float low, float high);

template <>
__device__ __forceinline__ unsigned pack<__nv_bfloat16>(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<unsigned*>(&pair);
}

template <>
__device__ __forceinline__ unsigned pack<__half>(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<unsigned*>(&pair);
}

// The sum of a pair, in float.
template <class T>
__device__ __forceinline__ float sum_of(unsigned pair);

template <>
__device__ __forceinline__ float sum_of<__nv_bfloat16>(unsigned pair) {  // the upper half of a float's bits
    return __uint_as_float(pair << 16) + __uint_as_float(pair & 0xFFFF0000u);
}

template <>
__device__ __forceinline__ float sum_of<__half>(unsigned pair) {
    const __half2 both = *reinterpret_cast<const __half2*>(&pair);
    return __low2float(both) + __high2float(both);
}
