// tests/device/kernels/wgmma.cu: the functions of kernels/wgmma.cuh.
//
// requires: sm_90a
#include "dtype.cuh"
#include "wgmma.cuh"

// BY_ROWS: b is given by rows, transposed for the instruction. LEFT_IN_SHARED: a is a tile too, not in registers.
// STATIC: so many bytes of static shared memory hold the tiles, not dynamic. FAULTY: the argument `fault` plants what a
// reader may forget.
#ifndef BY_ROWS
#define BY_ROWS 0
#endif
#ifndef LEFT_IN_SHARED
#define LEFT_IN_SHARED 0
#endif
#ifndef FAULTY
#define FAULTY 0
#endif
#define NO_WAIT 1
#define NO_COMMIT 2
#define LATE_WAIT 3
#define READ_EARLY 4
#define RIGHT_OVERWRITTEN 5
#define LEFT_OVERWRITTEN 6
#define SUMS_OVERWRITTEN 7
#define SUMS_SCALED 8
#define NO_BEGIN 9
#define NOT_ANNOUNCED 10
#define NO_BARRIER 11
#define OF_EACH_WARP 12
#define OF_EACH_LANE 13
#define WARP_LEFT_OUT 14
#define LANES_LEFT_OUT 15
#define OWN_WORD 16
#define TOO_MANY 17
#define BEGUN_EARLY 18
#define FREED_EARLY 19

__device__ int row_of(int thread, int i) { return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8; }
__device__ int column_of(int thread, int i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

// A tile of 64 x 64, each row's chunks in their places.
__device__ void fill(unsigned tile, const scalar_t* from, int thread) {
    for (int i = thread; i < 64 * 8; i += 128) {
        const int row = i / 8, chunk = i % 8;
        cp_async_16(tile + row * 128 + (chunk ^ row % 8) * 16, from + row * 64 + chunk * 8, true);
    }
    cp_async_commit();
}

__device__ void load_left(unsigned (&left)[4][4], const scalar_t* a, int thread) {
    const unsigned* pairs = reinterpret_cast<const unsigned*>(a);
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++) left[k][i] = pairs[row_of(thread, i % 2 * 2) * 32 + k * 8 + thread % 4 + i / 2 * 4];
}

__device__ void multiply(float (&sums)[32], unsigned (&left)[4][4], unsigned left_tile, unsigned right_tile,
                         bool own_word = false) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        unsigned long long right = shared_operand(right_tile + k * (BY_ROWS ? 2048 : 32));
        if (own_word) right ^= 1ull << 63;
#if LEFT_IN_SHARED
        wgmma_64x64x16<scalar_t, BY_ROWS>(sums, shared_operand(left_tile + k * 32), right);
#else
        wgmma_64x64x16<scalar_t, BY_ROWS>(sums, left[k], right);
#endif
    }
}

// d (blocks, groups, 64, 64) float32 = c, of the same shape, + a @ b: a group of 128 threads each. a (groups, 64, 64);
// b (groups, 64, 64) by columns, or by rows. b's and then a's tile lie from `offset` bytes of shared memory on.
extern "C" __global__ void products(const scalar_t* a, const scalar_t* b, const float* c, float* d, int offset,
                                    int planted) {
    const int fault = FAULTY ? planted : 0;
#ifdef STATIC
    __shared__ __align__(1024) unsigned char tiles[STATIC];
#else
    extern __shared__ __align__(1024) unsigned char tiles[];
#endif
    const int thread = threadIdx.x % 128, group = threadIdx.x / 128, out = blockIdx.x * (blockDim.x / 128) + group;
    unsigned right = shared_address(tiles) + offset + group * 16384;
    a += group * 4096, b += group * 4096, c += out * 4096, d += out * 4096;
    unsigned left[4][4];
    float sums[32];
    fill(right, b, thread);
    fill(right + 8192, a, thread);
    load_left(left, a, thread);
    for (int i = 0; i < 32; i++) sums[i] = c[row_of(thread, i) * 64 + column_of(thread, i)];
    cp_async_wait<0>();
    if (fault != NOT_ANNOUNCED) shared_writes_for_wgmma();
    if (fault != NO_BARRIER && fault != BEGUN_EARLY) __syncthreads();
    if (fault == WARP_LEFT_OUT && threadIdx.x / 32 == 2) return;
    if (fault == LANES_LEFT_OUT && threadIdx.x >= 80 && threadIdx.x < 90) return;
    const unsigned left_tile = right + 8192;
    if (fault == OF_EACH_WARP) right += thread / 32 % 2 * 8192;
    if (fault == OF_EACH_LANE) right += thread % 2 * 8192;
    if (fault != NO_BEGIN) wgmma_begin();
    multiply(sums, left, left_tile, right, fault == OWN_WORD);
    for (int i = 0; i < 16 && fault == TOO_MANY; i++) multiply(sums, left, left_tile, right);
    if (fault != NO_COMMIT) wgmma_commit();
    if (fault == BEGUN_EARLY || fault == FREED_EARLY) __syncthreads();
    if ((fault == RIGHT_OVERWRITTEN || fault == FREED_EARLY) && thread == 0) tiles[offset + group * 16384 + 5000] ^= 1;
    if (fault == LEFT_OVERWRITTEN && thread == 77) tiles[offset + group * 16384 + 13000] ^= 1;
    if (fault == SUMS_OVERWRITTEN && thread == 77) sums[5] = 0;
    for (int i = 0; i < 32 && fault == SUMS_SCALED; i++) sums[i] *= 0.5f;
    if (fault == LATE_WAIT) wgmma_wait<1>();
    else if (fault != NO_WAIT && fault != READ_EARLY) wgmma_wait<0>();
    for (int i = 0; i < 32; i++) d[row_of(thread, i) * 64 + column_of(thread, i)] = sums[i];
    if (fault == LATE_WAIT || fault == READ_EARLY) wgmma_wait<0>();
}

// One group of threads. d (2, 64, 64) = a @ b and twice that, both of which are begun before either is waited for;
// RUNNING: how many groups of products may be on their way when the first of them is read.
#ifndef RUNNING
#define RUNNING 1
#endif
extern "C" __global__ void one_after_the_other(const scalar_t* a, const scalar_t* b, float* d) {
    extern __shared__ __align__(1024) unsigned char tiles[];
    const int thread = threadIdx.x;
    const unsigned right = shared_address(tiles);
    unsigned left[4][4];
    float first[32] = {}, second[32] = {};
    fill(right, b, thread);
    load_left(left, a, thread);
    cp_async_wait<0>();
    shared_writes_for_wgmma();
    __syncthreads();
    wgmma_begin();
    multiply(first, left, 0, right);
    wgmma_commit();
    multiply(second, left, 0, right);
    multiply(second, left, 0, right);
    wgmma_commit();
    wgmma_wait<RUNNING>();
    for (int i = 0; i < 32; i++) d[row_of(thread, i) * 64 + column_of(thread, i)] = first[i];
    wgmma_wait<0>();
    for (int i = 0; i < 32; i++) d[4096 + row_of(thread, i) * 64 + column_of(thread, i)] = second[i];
}
