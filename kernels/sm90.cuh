// kernels/sm90.cuh: what came with Hopper: copies in bulk, and barriers in shared memory that count their bytes. And
// the two instructions by which blocks of one grid hand words to each other.
//
// requires: sm_90
//
// One function an instruction, like ptx.cuh, but without twins on the emulator: a kernel that includes this runs on a
// GPU only, and a plain one stands in elsewhere. A barrier (mbarrier) is 8 bytes of shared memory, known here by its
// address as a number (shared_address). A phase of it is over when as many threads have arrived as it was made for and
// all bytes that they announced have come in; then the next begins. A waiter names the parity of the phase that it
// waits for: 0, 1, 0, ... . Of a barrier just made the phase before the first, of parity 1, is over.
#pragma once
#include "ptx.cuh"
#ifdef TINY_VLLM_EMULATOR
#error "the emulator has no bulk copies: choose the stages that stand in (TunedOps does)"
#endif

__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After the barriers are made: the copy engine may see them.
__device__ __forceinline__ void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrive, and announce bytes that copies will bring.
__device__ __forceinline__ void barrier_expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Whether the phase of this parity is over.
__device__ __forceinline__ bool barrier_is_over(unsigned barrier, unsigned parity) {
    unsigned over;
    asm volatile(
        "{\n"
        " .reg .pred p;\n"
        " mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(over)
        : "r"(barrier), "r"(parity)
        : "memory");
    return over != 0;
}

__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{\n"
        " .reg .pred p;\n"
        "WAIT:\n"
        " mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
        " @p bra DONE;\n"
        " bra WAIT;\n"
        "DONE:\n"
        "}"
        :
        : "r"(barrier), "r"(parity)
        : "memory");
}

// For bulk_copy: what is copied will not be wanted again, so let it leave L2 first.
__device__ __forceinline__ unsigned long long evict_first() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Begin to copy bytes, a multiple of 16, from global to shared memory; both places are multiples of 16. The barrier
// hears of it when they are there.
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, int bytes, unsigned barrier,
                                          unsigned long long policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        :
        : "r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

// Ask for bytes, a multiple of 16, to be brought into L2.
__device__ __forceinline__ void bulk_prefetch(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Words that another block of this grid writes meanwhile: read from L2, where it puts them. Each word is seen as it was
// or as it is, never half of it.
__device__ __forceinline__ uint4 load_four_words(const unsigned* p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
// The same, if `wanted`; otherwise v stays as it is. No branch, so that several of these are on their way together.
__device__ __forceinline__ void load_four_words_if(bool wanted, uint4& v, const unsigned* p) {
    asm volatile(
        "{\n"
        " .reg .pred p;\n"
        " setp.ne.u32 p, %5, 0;\n"
        " @p ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];\n"
        "}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(p), "r"((unsigned)wanted)
        : "memory");
}
__device__ __forceinline__ unsigned load_word(const unsigned* p) {
    unsigned v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_word(unsigned* p, unsigned v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// __syncthreads of the first COUNT threads of a block, whole warps; the others go on.
template <int COUNT>
__device__ __forceinline__ void sync_first_threads() {
    asm volatile("bar.sync 1, %0;" ::"n"(COUNT) : "memory");
}

// An 8x8 matrix in a warp, lane (g, t) with elements 2t and 2t+1 of row g (ptx.cuh): the transposed one, held alike.
__device__ __forceinline__ unsigned transpose(unsigned pair) {
    unsigned r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
}

// 16 bytes of shared memory that bulk_copy brought.
__device__ __forceinline__ uint4 load_shared(unsigned at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

// 2^x.
__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
