// chapters/ch06_attention/attention.cu: the worked solution of chapter 06. The engine runs kernels/attention.cu.
//
// Causal attention of one request, in three kernels, one after another:
//   scores[h, i, j] = q[i, h] . k[j, h'] / sqrt(head_dim), or -inf where key j lies after query i
//   scores[h, i, :] = softmax(scores[h, i, :])
//   out[i, h]       = sum over j of scores[h, i, j] * v[j, h']
// Query head h reads key/value head h' = h / (num_q_heads / num_kv_heads): several query heads share one
// (grouped-query attention, GQA).
// Query i stands at position offset + i, key j at position j: with a cache of keys the queries are only the last ones.
// q, k, v may be columns of a wider array: their rows lie q_stride, k_stride, v_stride elements apart.
#include <math_constants.h>

#include "dtype.cuh"

// Grid (ceil(num_keys / blockDim.x), num_queries, num_q_heads), any block: block (., i, h) owns query i of head h, each
// of its threads one key.
extern "C" __global__ void attention_scores(const scalar_t* q, int q_stride,  // (num_queries, num_q_heads * head_dim)
                                            const scalar_t* k, int k_stride,  // (num_keys, num_kv_heads * head_dim)
                                            float* scores,                    // (num_q_heads, num_queries, num_keys)
                                            int num_keys, int num_kv_heads, int head_dim, int offset, float scale) {
    int key = blockIdx.x * blockDim.x + threadIdx.x;
    int query = blockIdx.y, num_queries = gridDim.y;
    int head = blockIdx.z, kv_head = head / (gridDim.z / num_kv_heads);
    if (key >= num_keys) return;
    const scalar_t* q_vector = q + (size_t)query * q_stride + head * head_dim;
    const scalar_t* k_vector = k + (size_t)key * k_stride + kv_head * head_dim;
    float* score = scores + ((size_t)head * num_queries + query) * num_keys + key;

    // EXERCISE-BEGIN 6.2 (about 4 lines): the scaled dot product, and -CUDART_INF_F for a key that lies in the future
    float dot = 0.0f;
    for (int d = 0; d < head_dim; d++) dot += float(q_vector[d]) * float(k_vector[d]);
    *score = key <= offset + query ? dot * scale : -CUDART_INF_F;
    // EXERCISE-END 6.2
}

// Grid (num_rows) with num_rows = num_q_heads * num_queries, block a power of two: block r owns row r of the scores,
// its thread t the keys t, t + blockDim.x ... The row's maximum is subtracted before exp, so no exponent is above 0:
// the largest term is 1, nothing overflows. A row that is masked altogether becomes zeros, and not -inf - -inf = NaN.
extern "C" __global__ void softmax_rows(float* scores,  // (num_rows, num_keys), in place
                                        int num_keys) {
    __shared__ float partial[1024];  // one value a thread; no block has more threads
    float* row = scores + (size_t)blockIdx.x * num_keys;

    float largest = -CUDART_INF_F;
    for (int key = threadIdx.x; key < num_keys; key += blockDim.x) largest = fmaxf(largest, row[key]);
    partial[threadIdx.x] = largest;
    __syncthreads();
    for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
        if (threadIdx.x < stride) partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + stride]);
        __syncthreads();
    }
    largest = partial[0];
    __syncthreads();  // everyone has read the maximum: partial may be used again

    float sum = 0.0f;
    // EXERCISE-BEGIN 6.3 (about 5 lines): turn this thread's scores into exp(score - largest), and add them up
    for (int key = threadIdx.x; key < num_keys; key += blockDim.x) {
        float weight = row[key] == -CUDART_INF_F ? 0.0f : expf(row[key] - largest);
        row[key] = weight;
        sum += weight;
    }
    // EXERCISE-END 6.3
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
        if (threadIdx.x < stride) partial[threadIdx.x] += partial[threadIdx.x + stride];
        __syncthreads();
    }
    float inverse = partial[0] == 0.0f ? 0.0f : 1.0f / partial[0];
    for (int key = threadIdx.x; key < num_keys; key += blockDim.x) row[key] *= inverse;
}

// Grid (num_queries, num_q_heads), any block: block (i, h) owns the vector out[i, h], its thread t the elements
// t, t + blockDim.x ... Neighbours read neighbouring elements of v. Without any key the sum is 0.
extern "C" __global__ void weighted_sum(const float* scores,  // (num_q_heads, num_queries, num_keys), after the softmax
                                        const scalar_t* v, int v_stride,  // (num_keys, num_kv_heads * head_dim)
                                        scalar_t* out,                    // (num_queries, num_q_heads * head_dim)
                                        int num_keys, int num_kv_heads, int head_dim) {
    int query = blockIdx.x, num_queries = gridDim.x;
    int head = blockIdx.y, num_q_heads = gridDim.y, kv_head = head / (num_q_heads / num_kv_heads);
    const float* weights = scores + ((size_t)head * num_queries + query) * num_keys;
    for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
        float sum = 0.0f;
        for (int key = 0; key < num_keys; key++) {
            sum += weights[key] * float(v[(size_t)key * v_stride + kv_head * head_dim + d]);
        }
        out[((size_t)query * num_q_heads + head) * head_dim + d] = scalar_t(sum);
    }
}
