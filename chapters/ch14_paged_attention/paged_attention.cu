// chapters/ch14_paged_attention/paged_attention.cu: the worked solution of chapter 14. The engine runs
// kernels/attention.cu, or kernels/paged_decode.cu where it holds.
//
// Causal attention of all tokens of a step, each over its own request's blocks of the cache (PagedAttention, Kwon et
// al., 2023): no key is copied first. A context is split among several CUDA blocks, each of which leaves a softmax's
// state (chapter 13) that a second kernel merges (Flash-Decoding, Dao et al., 2023): otherwise one token of one long
// request would keep num_heads multiprocessors busy, and leave the others idle.
#include <math_constants.h>

#include "dtype.cuh"
#ifndef HEAD_DIM
#error "paged_attention.cu is compiled for one head size: give -DHEAD_DIM=64"
#endif
#define THREADS 32            // of a block, and keys of a tile
#define STATE (HEAD_DIM + 2)  // floats of a state: the value's HEAD_DIM columns, the maximum, the sum

// Where the key at `position` of a request begins in kv; its value lies block_size * HEAD_DIM elements further on.
__device__ __forceinline__ size_t key_offset(const int* blocks, int position, int block_size, int num_kv_heads,
                                             int kv_head) {
    size_t row = 0;  // of HEAD_DIM elements
    // EXERCISE-BEGIN 14.1 (about 3 lines): from position to block, and place in it; mind that 2^31 elements are few
    size_t block = blocks[position / block_size];
    int place = position % block_size;
    row = (block * num_kv_heads + kv_head) * 2 * block_size + place;
    // EXERCISE-END 14.1
    return row * HEAD_DIM;
}

// How many keys a token sees, and which request it belongs to; 0 where nobody owns the row.
__device__ __forceinline__ int visible_keys(int token, const int* query_start_loc, const int* seq_lens,
                                            int num_requests, int& request) {
    request = 0;
    while (request < num_requests && query_start_loc[request + 1] <= token) request++;
    if (request == num_requests) return 0;
    return max(0, seq_lens[request] - (query_start_loc[request + 1] - 1 - token));
}

// Grid (T, num_heads, splits), THREADS threads: block (t, h, s) takes split s of what token t sees, in head h. In a
// tile of THREADS keys a thread computes the score of one key, then owns every THREADS-th column of the value.
// Bytes: each key and value once for each query head and token, as in kernels/attention.cu.
extern "C" __global__ void paged_attention(const scalar_t* q, int q_stride,  // (T, num_heads * HEAD_DIM)
                                           const scalar_t* kv,               // (blocks, kv_heads, 2, size, HEAD_DIM)
                                           const int* query_start_loc,       // (num_requests + 1,)
                                           const int* seq_lens,              // (num_requests,)
                                           const int* block_table,           // (num_requests, table_width)
                                           float* states,                    // (T, num_heads, splits, STATE)
                                           int num_requests, int table_width, int block_size, int num_kv_heads,
                                           float scale) {
    __shared__ float scores[THREADS];
    __shared__ size_t offsets[THREADS];
    const int token = blockIdx.x, head = blockIdx.y, split = blockIdx.z, splits = gridDim.z, t = threadIdx.x;
    const int kv_head = head / (gridDim.y / num_kv_heads);
    int request;
    const int visible = visible_keys(token, query_start_loc, seq_lens, num_requests, request);
    const int* blocks = block_table + (size_t)request * table_width;
    const scalar_t* q_vector = q + (size_t)token * q_stride + head * HEAD_DIM;

    int first = 0, end = 0;
    // EXERCISE-BEGIN 14.2 (about 3 lines): this split's keys, [first, end); the last splits may have none
    int keys_a_split = (visible + splits - 1) / splits;
    first = min(visible, split * keys_a_split);
    end = min(visible, first + keys_a_split);
    // EXERCISE-END 14.2

    float maximum = -CUDART_INF_F, sum = 0.0f, value[(HEAD_DIM + THREADS - 1) / THREADS] = {};
    for (int tile = first; tile < end; tile += THREADS) {
        const int keys = min(THREADS, end - tile);
        if (t < keys) {
            offsets[t] = key_offset(blocks, tile + t, block_size, num_kv_heads, kv_head);
            float dot = 0.0f;
            for (int d = 0; d < HEAD_DIM; d++) dot += float(q_vector[d]) * float(kv[offsets[t] + d]);
            scores[t] = dot * scale;
        }
        __syncthreads();
        float larger = maximum;
        for (int key = 0; key < keys; key++) larger = fmaxf(larger, scores[key]);
        float shrink = expf(maximum - larger);  // 0 the first time
        sum *= shrink;
        for (int d = t, c = 0; d < HEAD_DIM; d += THREADS, c++) value[c] *= shrink;
        for (int key = 0; key < keys; key++) {
            float weight = expf(scores[key] - larger);
            const scalar_t* v_vector = kv + offsets[key] + (size_t)block_size * HEAD_DIM;
            sum += weight;
            for (int d = t, c = 0; d < HEAD_DIM; d += THREADS, c++) value[c] += weight * float(v_vector[d]);
        }
        maximum = larger;
        __syncthreads();  // nobody reads this tile's scores any more
    }
    float* state = states + (((size_t)token * gridDim.y + head) * splits + split) * STATE;
    for (int d = t, c = 0; d < HEAD_DIM; d += THREADS, c++) state[d] = value[c];
    if (t == 0) state[HEAD_DIM] = maximum, state[HEAD_DIM + 1] = sum;
}

// Grid (T, num_heads), THREADS threads: block (t, h) merges the states of token t in head h; a thread owns every
// THREADS-th column. A state of no keys has maximum -inf and weighs nothing; of nothing but such, the row is zeros.
extern "C" __global__ void merge_splits(const float* states,  // (T, num_heads, splits, STATE)
                                        scalar_t* out,        // (T, num_heads * HEAD_DIM)
                                        int splits) {
    const size_t row = (size_t)blockIdx.x * gridDim.y + blockIdx.y;
    const float* mine = states + row * splits * STATE;
    for (int d = threadIdx.x; d < HEAD_DIM; d += THREADS) {
        float maximum = -CUDART_INF_F, sum = 0.0f, value = 0.0f;
        // EXERCISE-BEGIN 14.3 (about 8 lines): column d of all splits together; -inf - -inf is NaN
        for (int s = 0; s < splits; s++) maximum = fmaxf(maximum, mine[s * STATE + HEAD_DIM]);
        for (int s = 0; s < splits; s++) {
            const float* state = mine + s * STATE;
            if (state[HEAD_DIM + 1] == 0.0f) continue;  // no keys
            float weight = expf(state[HEAD_DIM] - maximum);
            value += weight * state[d];
            sum += weight * state[HEAD_DIM + 1];
        }
        // EXERCISE-END 14.3
        out[row * HEAD_DIM + d] = scalar_t(sum == 0.0f ? 0.0f : value / sum);
    }
}
