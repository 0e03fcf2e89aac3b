// kernels/attention.cu: what the engine runs. Its lessons, chapters 13 (online softmax) and 14 (pages), are to come.
//
// Causal attention of every token of a step over a paged KV cache (Kwon et al., 2023), in one pass over the keys with
// a running maximum and sum (online softmax, Milakov and Gimelshein, 2018), so that shared memory does not grow with
// the context. Query heads share key/value heads in groups of num_heads / num_kv_heads (GQA).
//
// Grid (T, num_heads): a block computes one head of one token; tokens lie on x, where a grid may be longest.
// Block: groups * HEAD_DIM / 4 threads, FOLD at least. Keys come in tiles of TILE; in each a thread has two tasks:
//   scores   thread t takes keys t, t + blockDim.x, ...: the whole dot product, then exp(score - maximum);
//   values   thread t owns four columns of the output and adds up every groups-th key, from its group's number on.
// Four barriers a tile, and no shuffle a key.
// Bytes: each key and value once for each query head and token, 2 * context * HEAD_DIM * sizeof(scalar_t); the floor
// is num_heads / num_kv_heads times lower, since the query heads of a group read the same keys. For 256 requests of 512
// tokens of Llama-3.2-1B the floor is 64.5 us at 4.22 TB/s; measured on an H200: 425 us (paged_decode.cu: 76).
#include <math_constants.h>

#include "dtype.cuh"
#include "reduce.cuh"
#ifndef HEAD_DIM
#error "attention.cu is compiled for one head size, a multiple of 8: give -DHEAD_DIM=64"
#endif
#define TILE 512
#define MAX_THREADS 256
#define COLUMNS 4  // of the output, for each thread

// The request that owns a token: the last r with start[r] <= token (a binary search; requests may be empty).
__device__ int request_of(int token, const int* start, int num_requests) {
    int low = 0, high = num_requests;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (start[middle] <= token) low = middle;
        else high = middle;
    }
    return low;
}

__device__ __forceinline__ float dot(const float* query, const scalar_t* key) {
    float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // four chains of additions, none waiting for another
#pragma unroll 4
    for (int d = 0; d < HEAD_DIM; d += 4) {
        const scalar4 k = load4(key + d);
        for (int j = 0; j < 4; j++) part[j] += query[d + j] * float(k.x[j]);
    }
    return (part[0] + part[1]) + (part[2] + part[3]);
}

// Columns of one head's output: what the groups of threads have added up, over the sum of their weights. is_seen: there
// was a key; without one the output is zeros.
__device__ __forceinline__ void write_output(scalar_t* out, const float (*values)[COLUMNS], const float* sums,
                                             int groups, bool is_seen) {
    const int width = HEAD_DIM / COLUMNS;
    for (int d = threadIdx.x; d < HEAD_DIM; d += blockDim.x) {
        float total = 0.0f, result = 0.0f;
        for (int g = 0; g < groups; g++) {
            total += sums[g * width];
            result += values[g * width + d / COLUMNS][d % COLUMNS];
        }
        out[d] = scalar_t(is_seen ? result / total : 0.0f);
    }
}

extern "C" __global__ void attention(const scalar_t* q,           // (T, num_heads * HEAD_DIM), rows q_stride apart
                                     const scalar_t* kv,          // (blocks, num_kv_heads, 2, block_size, HEAD_DIM)
                                     const int* query_start_loc,  // (num_requests + 1,)
                                     const int* seq_lens,         // (num_requests,)
                                     const int* block_table,      // (num_requests, table_width)
                                     scalar_t* out,               // (T, num_heads * HEAD_DIM)
                                     int q_stride, int num_requests, int table_width, int block_size, int num_kv_heads,
                                     float scale) {
    __shared__ float query[HEAD_DIM];
    __shared__ float weight[TILE];       // of each key of the tile: its score, then exp(score - maximum)
    __shared__ size_t key_offset[TILE];  // where in kv it begins
    __shared__ float partial[MAX_THREADS];
    __shared__ float values[MAX_THREADS][COLUMNS];

    const int token = blockIdx.x, head = blockIdx.y, num_heads = gridDim.y;
    const int kv_head = head / (num_heads / num_kv_heads);
    const int request = request_of(token, query_start_loc, num_requests);
    const int tokens_after = query_start_loc[request + 1] - 1 - token;  // of this request; < 0: nobody owns the row
    const int visible = tokens_after < 0 ? 0 : seq_lens[request] - tokens_after;
    const int width = HEAD_DIM / COLUMNS, groups = blockDim.x / width;
    const int group = threadIdx.x / width, column = threadIdx.x % width * COLUMNS;

    const size_t row = (size_t)token * q_stride + head * HEAD_DIM;
    for (int d = threadIdx.x; d < HEAD_DIM; d += blockDim.x) query[d] = float(q[row + d]) * scale;

    float maximum = -CUDART_INF_F, sum = 0.0f, value[COLUMNS] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int tile = 0; tile < visible; tile += TILE) {
        const int keys = min(TILE, visible - tile);
        __syncthreads();  // query is there; nobody reads the last tile any more

        float tile_maximum = -CUDART_INF_F;
        for (int i = threadIdx.x; i < keys; i += blockDim.x) {
            const int position = tile + i;
            const size_t block = block_table[(size_t)request * table_width + position / block_size];
            key_offset[i] = ((block * num_kv_heads + kv_head) * 2 * block_size + position % block_size) * HEAD_DIM;
            weight[i] = dot(query, kv + key_offset[i]);
            tile_maximum = larger(tile_maximum, weight[i]);
        }
        const float new_maximum = larger(maximum, block_max(tile_maximum, partial));
        const float shrink = expf(maximum - new_maximum);  // what the earlier tiles are worth now; 0 the first time
        maximum = new_maximum;
        for (int i = threadIdx.x; i < keys; i += blockDim.x) weight[i] = expf(weight[i] - maximum);
        __syncthreads();

        sum *= shrink;
        for (int j = 0; j < COLUMNS; j++) value[j] *= shrink;
        const scalar_t* first_value = kv + (size_t)block_size * HEAD_DIM + column;  // a key's value lies a block later
        for (int i = group; i < keys; i += groups) {
            const scalar4 v = load4(first_value + key_offset[i]);
            sum += weight[i];
            for (int j = 0; j < COLUMNS; j++) value[j] += weight[i] * float(v.x[j]);
        }
    }

    partial[threadIdx.x] = sum;  // block_max is done with it since the last barrier
    for (int j = 0; j < COLUMNS; j++) values[threadIdx.x][j] = value[j];
    __syncthreads();
    write_output(out + ((size_t)token * num_heads + head) * HEAD_DIM, values, partial, groups, visible > 0);
}
