// chapters/ch13_online_softmax/online_softmax.cu: the worked solution of chapter 13. The engine runs
// kernels/attention.cu, or kernels/paged_prefill.cu where it holds.
//
// Causal attention of one request, in one pass over the keys: no score is ever written to global memory.
// A softmax over the keys seen so far is a state of three things (Milakov and Gimelshein, 2018):
//   maximum   the largest score
//   sum       of exp(score - maximum)
//   value     the vector of the same weights times the keys' values; value / sum is the attention of these keys
// A state takes in one more key, and two states merge into that of all their keys. Of no keys: -inf, 0, 0.
// Query head h reads key/value head h / (num_q_heads / num_kv_heads); query i sees the keys 0 to offset + i.
#include <math_constants.h>

#include "dtype.cuh"
#ifndef HEAD_DIM
#error "online_softmax.cu is compiled for one head size: give -DHEAD_DIM=64"
#endif
#define LANES 16    // threads that share a query
#define QUERIES 16  // of a block of flash_attention
#define KEYS 16     // of a tile

// exp(a - b), where both may be -inf: a state of no keys weighs nothing.
__device__ __forceinline__ float weight(float a, float b) { return a == -CUDART_INF_F ? 0.0f : expf(a - b); }

// Grid (num_queries, num_q_heads), LANES threads: block (i, h) owns query i of head h. Thread t takes in the keys
// t, t + LANES, ... by itself; then the states merge in pairs, as a sum does in chapter 03.
// Bytes: each key and value once for each query and head.
extern "C" __global__ void one_pass(const scalar_t* q, int q_stride,  // (num_queries, num_q_heads * HEAD_DIM)
                                    const scalar_t* k, int k_stride,  // (num_keys, num_kv_heads * HEAD_DIM)
                                    const scalar_t* v, int v_stride,  // (num_keys, num_kv_heads * HEAD_DIM)
                                    scalar_t* out,                    // (num_queries, num_q_heads * HEAD_DIM)
                                    int num_keys, int num_kv_heads, int offset, float scale) {
    __shared__ float maximum[LANES], sum[LANES], value[LANES][HEAD_DIM];
    const int query = blockIdx.x, head = blockIdx.y, num_q_heads = gridDim.y, t = threadIdx.x;
    const int kv_head = head / (num_q_heads / num_kv_heads), visible = min(num_keys, offset + query + 1);
    const scalar_t* q_vector = q + (size_t)query * q_stride + head * HEAD_DIM;

    maximum[t] = -CUDART_INF_F;
    sum[t] = 0.0f;
    for (int d = 0; d < HEAD_DIM; d++) value[t][d] = 0.0f;
    for (int key = t; key < visible; key += LANES) {
        const scalar_t* k_vector = k + (size_t)key * k_stride + kv_head * HEAD_DIM;
        const scalar_t* v_vector = v + (size_t)key * v_stride + kv_head * HEAD_DIM;
        float score = 0.0f;
        for (int d = 0; d < HEAD_DIM; d++) score += float(q_vector[d]) * float(k_vector[d]);
        score *= scale;
        // EXERCISE-BEGIN 13.1 (about 6 lines): take this key into the thread's state; its maximum may grow
        float larger = fmaxf(maximum[t], score);
        float shrink = weight(maximum[t], larger), mine = expf(score - larger);
        sum[t] = sum[t] * shrink + mine;
        for (int d = 0; d < HEAD_DIM; d++) value[t][d] = value[t][d] * shrink + mine * float(v_vector[d]);
        maximum[t] = larger;
        // EXERCISE-END 13.1
    }
    __syncthreads();
    for (int stride = LANES / 2; stride > 0; stride >>= 1) {
        if (t < stride) {
            int other = t + stride;
            // EXERCISE-BEGIN 13.2 (about 7 lines): merge the state of thread `other` into mine; either may have no keys
            float larger = fmaxf(maximum[t], maximum[other]);
            float mine = weight(maximum[t], larger), theirs = weight(maximum[other], larger);
            sum[t] = sum[t] * mine + sum[other] * theirs;
            for (int d = 0; d < HEAD_DIM; d++) value[t][d] = value[t][d] * mine + value[other][d] * theirs;
            maximum[t] = larger;
            // EXERCISE-END 13.2
        }
        __syncthreads();
    }
    for (int d = t; d < HEAD_DIM; d += LANES) {
        float result = sum[0] == 0.0f ? 0.0f : value[0][d] / sum[0];
        out[((size_t)query * num_q_heads + head) * HEAD_DIM + d] = scalar_t(result);
    }
}

// FlashAttention (Dao et al., 2022) in its plainest form. Grid (ceil(num_queries / QUERIES), num_q_heads),
// (LANES, QUERIES) threads: block (b, h) owns QUERIES queries of head h. Tile by tile, keys and values come into shared
// memory and serve all of them: global memory is read QUERIES times less often than by one_pass.
// Thread (j, i) computes the score of query i with key j of the tile, and owns the columns j, j + LANES, ... of out[i].
extern "C" __global__ void flash_attention(const scalar_t* q, int q_stride,  // (num_queries, num_q_heads * HEAD_DIM)
                                           const scalar_t* k, int k_stride,  // (num_keys, num_kv_heads * HEAD_DIM)
                                           const scalar_t* v, int v_stride,  // (num_keys, num_kv_heads * HEAD_DIM)
                                           scalar_t* out,                    // (num_queries, num_q_heads * HEAD_DIM)
                                           int num_queries, int num_keys, int num_kv_heads, int offset, float scale) {
    __shared__ float keys[KEYS][HEAD_DIM + 1], values[KEYS][HEAD_DIM];  // + 1: 16 threads read 16 rows at once
    __shared__ float scores[QUERIES][KEYS];
    const int j = threadIdx.x, i = threadIdx.y, head = blockIdx.y, num_q_heads = gridDim.y;
    const int kv_head = head / (num_q_heads / num_kv_heads), query = blockIdx.x * QUERIES + i;
    const int last_query = min(num_queries, (int)(blockIdx.x + 1) * QUERIES) - 1;
    const int needed = min(num_keys, offset + last_query + 1);  // keys that any of the queries sees
    const int row = min(query, num_queries - 1);  // a thread without a query computes along, and is silent
    const scalar_t* q_vector = q + (size_t)row * q_stride + head * HEAD_DIM;

    float maximum = -CUDART_INF_F, sum = 0.0f, value[(HEAD_DIM + LANES - 1) / LANES] = {};
    for (int tile = 0; tile < needed; tile += KEYS) {
        for (int key = i; key < KEYS; key += QUERIES) {
            const size_t place = min(tile + key, num_keys - 1);
            for (int d = j; d < HEAD_DIM; d += LANES) {
                keys[key][d] = float(k[place * k_stride + kv_head * HEAD_DIM + d]);
                values[key][d] = float(v[place * v_stride + kv_head * HEAD_DIM + d]);
            }
        }
        __syncthreads();
        float score = 0.0f;
        for (int d = 0; d < HEAD_DIM; d++) score += float(q_vector[d]) * keys[j][d];
        scores[i][j] = tile + j < num_keys && tile + j <= offset + query ? score * scale : -CUDART_INF_F;
        __syncthreads();

        // EXERCISE-BEGIN 13.3 (about 9 lines): the state of query i takes in the whole tile: its columns, and sum
        float larger = maximum;
        for (int key = 0; key < KEYS; key++) larger = fmaxf(larger, scores[i][key]);
        float shrink = weight(maximum, larger);
        sum *= shrink;
        for (int d = j, c = 0; d < HEAD_DIM; d += LANES, c++) value[c] *= shrink;
        for (int key = 0; key < KEYS; key++) {
            float mine = weight(scores[i][key], larger);
            sum += mine;
            for (int d = j, c = 0; d < HEAD_DIM; d += LANES, c++) value[c] += mine * values[key][d];
        }
        maximum = larger;
        // EXERCISE-END 13.3
        __syncthreads();  // nobody reads this tile any more
    }
    if (query >= num_queries) return;
    for (int d = j, c = 0; d < HEAD_DIM; d += LANES, c++) {
        float result = sum == 0.0f ? 0.0f : value[c] / sum;
        out[((size_t)query * num_q_heads + head) * HEAD_DIM + d] = scalar_t(result);
    }
}
