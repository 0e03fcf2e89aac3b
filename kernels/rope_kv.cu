// kernels/rope_kv.cu: rope.cu and write_kv.cu in one pass over the qkv product, for steps of many tokens.
//
// q is turned in place, k on its way to the cache, v copied to the cache; k and v stay as they are in qkv, since
// attention reads the cache. There may be no head of q, or none of k and v. The pairs are those of rope.cu: elements i
// and i + HEAD_DIM / 2 of a head.
// requires: HEAD_DIM a multiple of 2 * WIDTH, so that each half of a head is whole vectors.
//
// One block a token; its work is divided into items, two vectors each: the two halves of a pair of vectors of a q head,
// then of k heads, then of v heads. Thread t owns items t, t + blockDim.x, ...
// Slot -1 belongs to a row that nobody owns: its k and v go nowhere.
// Bytes: q read and written, k and v read and written to the cache, 2 * T * (num_heads + 2 * num_kv_heads) * HEAD_DIM *
// sizeof(scalar_t). For 8,192 tokens, 32 and 8 heads of 64 in bfloat16 that is 23.9 us at 4.22 TB/s; measured on an
// H200 28.4 us, and 36.6 for rope.cu and write_kv.cu.
#include "vectors.cuh"
#ifndef HEAD_DIM
#error "rope_kv.cu is compiled for one head size: give -DHEAD_DIM=64"
#endif

constexpr int HALF = HEAD_DIM / 2, ITEMS = HALF / WIDTH;  // of a head
static_assert(HALF % WIDTH == 0, "each half of a head is whole vectors");

// angles: cosines, then sines, of this position from the vectors' column on.
__device__ __forceinline__ void turn(Vector& first, Vector& second, const float* angles) {
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
        const float x = float(first.x[j]), y = float(second.x[j]), cosine = angles[j], sine = angles[j + HALF];
        first.x[j] = scalar_t(x * cosine - y * sine);
        second.x[j] = scalar_t(y * cosine + x * sine);
    }
}

extern "C" __global__ void rope_kv(scalar_t* qkv,         // (T, (num_heads + 2 * num_kv_heads) * HEAD_DIM): q, k, v;
                                                          // rows qkv_stride apart, a multiple of WIDTH
                                   const int* positions,  // (T,), each in [0, P)
                                   const int* slots,      // (T,)
                                   const float* table,  // (P, HEAD_DIM): cosines in the first half, sines in the second
                                   scalar_t* kv,        // (blocks, num_kv_heads, 2, block_size, HEAD_DIM)
                                   int qkv_stride, int num_heads, int num_kv_heads, int block_size) {
    const int token = blockIdx.x, slot = slots[token], num_turned = num_heads + num_kv_heads;
    const float* angles = table + (size_t)positions[token] * HEAD_DIM;
    scalar_t* row = qkv + (size_t)token * qkv_stride;
    const size_t block = slot / block_size;
    for (int i = threadIdx.x; i < (num_turned + num_kv_heads) * ITEMS; i += blockDim.x) {
        const int head = i / ITEMS, column = i % ITEMS * WIDTH;
        scalar_t* from = row + head * HEAD_DIM + column;
        Vector first = load(from), second = load(from + HALF);
        if (head < num_turned) turn(first, second, angles + column);
        scalar_t* to = from;
        if (head >= num_heads) {
            if (slot < 0) return;  // so are all items that follow
            const int kv_head = (head - num_heads) % num_kv_heads, is_value = head >= num_turned;
            to = kv + (((block * num_kv_heads + kv_head) * 2 + is_value) * block_size + slot % block_size) * HEAD_DIM +
                 column;
        }
        store(to, first);
        store(to + HALF, second);
    }
}
