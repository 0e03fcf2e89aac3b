// chapters/ch09_kv_cache/write_kv.cu: the worked solution of chapter 09. The engine runs kernels/write_kv.cu.
//
// The keys and values of a step's tokens into the cache of one layer. The cache is cut into blocks of block_size tokens
// (no blocks of threads). Slot s is place s % block_size of block s / block_size; token t goes to slots[t], or nowhere
// if that is -1 (a padded row).
//
// Grid (num_tokens), any block: block t owns the token in row t, its thread i the columns i, i + blockDim.x ...
// k and v may be columns of a wider array: their rows lie k_stride and v_stride elements apart.
// A cache may hold more than 2^31 elements, so its offsets are size_t.
#include "dtype.cuh"

extern "C" __global__ void write_kv(const scalar_t* k, int k_stride,  // (num_tokens, num_kv_heads * head_dim)
                                    const scalar_t* v, int v_stride,  // (num_tokens, num_kv_heads * head_dim)
                                    scalar_t* kv,      // (num_blocks, num_kv_heads, 2, block_size, head_dim)
                                    const int* slots,  // (num_tokens,)
                                    int num_kv_heads, int block_size, int head_dim) {
    int slot = slots[blockIdx.x];
    if (slot < 0) return;
    int block = slot / block_size, place = slot % block_size;
    k += (size_t)blockIdx.x * k_stride;
    v += (size_t)blockIdx.x * v_stride;
    for (int c = threadIdx.x; c < num_kv_heads * head_dim; c += blockDim.x) {
        int head = c / head_dim, d = c % head_dim;
        // EXERCISE-BEGIN 9.2 (about 4 lines): write k[c] and v[c] to where head, place and d lie in this block
        scalar_t* keys = kv + ((size_t)block * num_kv_heads + head) * 2 * block_size * head_dim;
        scalar_t* values = keys + block_size * head_dim;
        keys[place * head_dim + d] = k[c];
        values[place * head_dim + d] = v[c];
        // EXERCISE-END 9.2
    }
}
