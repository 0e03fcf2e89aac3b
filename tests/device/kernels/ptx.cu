// tests/device/kernels/ptx.cu: the functions of kernels/ptx.cuh, one at a time and together.
#include "dtype.cuh"
#include "ptx.cuh"

// One warp: what ldmatrix hands out, words (2, 32, 4): plain, then transposed. in: 32 rows of 8 elements, matrix by
// matrix; lane i gives row i. OFFSET moves every address.
#ifndef OFFSET
#define OFFSET 0
#endif
extern "C" __global__ void matrices(const unsigned short* in, unsigned* out) {
    __shared__ __align__(16) unsigned short rows[33][8];
    for (int d = 0; d < 8; d++) rows[threadIdx.x][d] = in[threadIdx.x * 8 + d];
    __syncthreads();
    unsigned r[4];
    ldmatrix_x4(r, shared_address(rows[threadIdx.x]) + OFFSET);
    for (int m = 0; m < 4; m++) out[threadIdx.x * 4 + m] = r[m];
    ldmatrix_x4_transposed(r, shared_address(rows[threadIdx.x]) + OFFSET);
    for (int m = 0; m < 4; m++) out[128 + threadIdx.x * 4 + m] = r[m];
}

// One warp, no barrier: d (16, 8) = a (16, 16) @ b.T + c, b (8, 16), operands read straight from global memory.
extern "C" __global__ void one_product(const scalar_t* a, const scalar_t* b, const float* c, float* d) {
#ifdef LANES
    if (threadIdx.x >= LANES) return;
#endif
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    const unsigned *left = reinterpret_cast<const unsigned*>(a), *right = reinterpret_cast<const unsigned*>(b);
    const unsigned operand[4] = {left[8 * g + t], left[8 * (g + 8) + t], left[8 * g + t + 4],
                                 left[8 * (g + 8) + t + 4]};
    float sum[4];
    for (int i = 0; i < 4; i++) sum[i] = c[8 * (g + i / 2 * 8) + 2 * t + i % 2];
    mma_16x8x16<scalar_t>(sum, operand, right[8 * g + t], right[8 * g + t + 4]);
    for (int i = 0; i < 4; i++) d[8 * (g + i / 2 * 8) + 2 * t + i % 2] = sum[i];
}

// Four warps: c (64, 64) = a (64, 64) @ b (64, 64). Sixteen columns of a and sixteen rows of b at a time, the next ones
// on their way while these are multiplied. FAULT plants what a reader may forget.
#ifndef FAULT
#define FAULT 0
#endif
#define NO_COMMIT 1
#define NO_WAIT 2
#define LATE_WAIT 3
#define NO_BARRIER 4
extern "C" __global__ void product(const scalar_t* a, const scalar_t* b, float* c) {
    extern __shared__ __align__(128) unsigned char stages[];  // 2 x (64 rows of 16 of a, 16 rows of 64 of b)
    const unsigned shared = shared_address(stages);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    auto fetch = [&](int step) {  // a thread copies half a row of a's piece, and an eighth of a row of b's
        const unsigned to = shared + step % 2 * 4096;
        cp_async_16(to + thread * 16, a + thread / 2 * 64 + step * 16 + thread % 2 * 8, true);
        cp_async_16(to + 2048 + thread * 16, b + (step * 16 + thread / 8) * 64 + thread % 8 * 8, true);
        if (FAULT != NO_COMMIT) cp_async_commit();
    };
    float sum[8][4] = {};
    fetch(0);
    for (int step = 0; step < 4; step++) {
        if (step < 3) fetch(step + 1);
        if (FAULT == LATE_WAIT) cp_async_wait<2>();
        else if (FAULT != NO_WAIT && step < 3) cp_async_wait<1>();
        else if (FAULT != NO_WAIT) cp_async_wait<0>();
        if (FAULT != NO_BARRIER) __syncthreads();
        const unsigned at = shared + step % 2 * 4096;
        unsigned left[4], right[4];
        ldmatrix_x4(left, at + (warp * 16 + lane % 16) * 32 + lane / 16 * 16);
        for (int n = 0; n < 8; n += 2) {
            ldmatrix_x4_transposed(right, at + 2048 + lane % 16 * 128 + (n + lane / 16) * 16);
            mma_16x8x16<scalar_t>(sum[n], left, right[0], right[1]);
            mma_16x8x16<scalar_t>(sum[n + 1], left, right[2], right[3]);
        }
        __syncthreads();  // nobody reads this stage any more
    }
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++)
            c[(warp * 16 + lane / 4 + i / 2 * 8) * 64 + n * 8 + lane % 4 * 2 + i % 2] = sum[n][i];
}

// Each thread copies COUNT chunks of 16 bytes into static shared memory, a group each, and waits for all but LATE of
// them; out (threads, COUNT, 4). Chunks from `valid` on are zeros. No barrier: a thread reads what it copied itself.
#ifndef COUNT
#define COUNT 4
#endif
#ifndef THREADS
#define THREADS 64
#endif
#ifndef LATE
#define LATE 0
#endif
extern "C" __global__ void copies(const uint4* in, uint4* out, int valid, int offset) {
    __shared__ uint4 chunks[THREADS][COUNT];
#ifdef USED  // as in a stage that is filled again
    for (int i = 0; i < COUNT; i++) chunks[threadIdx.x][i] = uint4{};
#endif
    for (int i = 0; i < COUNT; i++) {
        cp_async_16(shared_address(&chunks[threadIdx.x][i]), reinterpret_cast<const char*>(in + i) + offset, i < valid);
        cp_async_commit();
    }
    cp_async_wait<LATE>();
    for (int i = 0; i < COUNT; i++) out[(blockIdx.x * blockDim.x + threadIdx.x) * COUNT + i] = chunks[threadIdx.x][i];
}

extern "C" __global__ void hints(const uint4* in, uint4* out) {
    prefetch_l2(in + threadIdx.x);
    out[threadIdx.x] = load_once(in + threadIdx.x);
}

extern "C" __global__ void pairs(const float* in, unsigned* out) {
    out[threadIdx.x] = pack<scalar_t>(in[2 * threadIdx.x], in[2 * threadIdx.x + 1]);
}
