// chapters/ch09_kv_cache/gather_kv.cu: the worked solution of chapter 09. The engine gathers nothing.
//
// The keys and values of one request out of the cache's blocks, in order, so that chapter 06's attention can read them.
//
// A block of the cache holds block_size tokens; it has nothing to do with a block of threads.
// Grid (seq_len), any block: block t owns position t, its thread i the columns i, i + blockDim.x ...
// Floor: all keys and values of the request read and written, at every step. kernels/attention.cu reads them in place.
#include "dtype.cuh"

extern "C" __global__ void gather_kv(const scalar_t* kv,      // (num_blocks, num_kv_heads, 2, block_size, head_dim)
                                     const int* block_table,  // (ceil(seq_len / block_size),): the request's blocks
                                     scalar_t* k,             // (seq_len, num_kv_heads * head_dim) out
                                     scalar_t* v,             // (seq_len, num_kv_heads * head_dim) out
                                     int num_kv_heads, int block_size, int head_dim) {
    int columns = num_kv_heads * head_dim;
    int block = block_table[blockIdx.x / block_size], place = blockIdx.x % block_size;
    k += (size_t)blockIdx.x * columns;
    v += (size_t)blockIdx.x * columns;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
        int head = c / head_dim, d = c % head_dim;
        const scalar_t* keys = kv + ((size_t)block * num_kv_heads + head) * 2 * block_size * head_dim;
        const scalar_t* values = keys + block_size * head_dim;
        k[c] = keys[place * head_dim + d];
        v[c] = values[place * head_dim + d];
    }
}
