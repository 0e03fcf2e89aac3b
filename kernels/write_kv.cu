// kernels/write_kv.cu: what the engine runs. The lesson is in chapters/ch09_kv_cache; chapter 14 (pages) is to come.
//
// Puts each token's key and value where its slot says: block slot / block_size, offset slot % block_size in it.
// One block a token; thread i copies vectors i, i + blockDim.x, ... of the key and of the value, or elements where
// heads or rows are no whole vectors.
// Offsets are 64-bit: a cache has more than 2^31 elements. Slot -1 belongs to a row that nobody owns, and is skipped.
// Bytes: keys and values read and written once, 4 * T * num_kv_heads * head_dim * sizeof(scalar_t).
// For 8,192 tokens, 8 heads of 64 in bfloat16 that is 8.0 us at 4.22 TB/s; measured within a step on an H200 14.1 us.
#include "vectors.cuh"

extern "C" __global__ void write_kv(const scalar_t* k,  // (T, num_kv_heads * head_dim), rows k_stride apart
                                    const scalar_t* v,  // the same, rows v_stride apart
                                    scalar_t* kv,       // (blocks, num_kv_heads, 2, block_size, head_dim)
                                    const int* slots,   // (T,)
                                    int k_stride, int v_stride, int num_kv_heads, int block_size, int head_dim) {
    const int token = blockIdx.x, slot = slots[token];
    if (slot < 0) return;
    const size_t block = slot / block_size;
    const size_t to_value = (size_t)block_size * head_dim;  // from a key to its value
    k += (size_t)token * k_stride, v += (size_t)token * v_stride;
    const bool whole = head_dim % WIDTH == 0 && k_stride % WIDTH == 0 && v_stride % WIDTH == 0;
    const int step = whole ? WIDTH : 1;
    for (int i = threadIdx.x * step; i < num_kv_heads * head_dim; i += blockDim.x * step) {
        const size_t head = block * num_kv_heads + i / head_dim;
        scalar_t* to = kv + (head * 2 * block_size + slot % block_size) * head_dim + i % head_dim;
        if (whole) {
            store(to, load(k + i));
            store(to + to_value, load(v + i));
        } else {
            *to = k[i];
            to[to_value] = v[i];
        }
    }
}
