// chapters/ch04_rope/rope.cu: the worked solution of chapter 04. The engine runs kernels/rope.cu.
//
// Rotary position embedding, in place: in each head of q and of k, element i and its partner i + head_dim / 2 are a
// point in the plane, which turns by the angle position * inv_freq[i]. The table holds the angles' cosines and sines,
// a row for each position; the host makes it (tiny_vllm/models/rope.py).
//
// Grid (num_tokens), any block: block t owns the token in row t. Its heads, those of q first and then those of k, have
// head_dim / 2 pairs each; thread i owns the pairs i, i + blockDim.x, i + 2 * blockDim.x ...
// q and k may be columns of a wider array: their rows lie q_stride and k_stride elements apart.
#include "dtype.cuh"

extern "C" __global__ void rope(scalar_t* q, int q_stride,  // (num_tokens, num_q_heads * head_dim), in place
                                scalar_t* k, int k_stride,  // (num_tokens, num_kv_heads * head_dim), in place
                                const int* positions,       // (num_tokens,)
                                const float* table,         // (max_positions, head_dim): cosines, then sines
                                int num_q_heads, int num_kv_heads, int head_dim) {
    int half = head_dim / 2;
    q += (size_t)blockIdx.x * q_stride;
    k += (size_t)blockIdx.x * k_stride;
    const float* cosines = table + (size_t)positions[blockIdx.x] * head_dim;
    const float* sines = cosines + half;

    for (int pair = threadIdx.x; pair < (num_q_heads + num_kv_heads) * half; pair += blockDim.x) {
        int head = pair / half, i = pair % half;
        scalar_t* vector = head < num_q_heads ? q + head * head_dim : k + (head - num_q_heads) * head_dim;
        // EXERCISE-BEGIN 4.2 (about 4 lines): turn the pair (vector[i], vector[i + half]) by its angle
        float a = float(vector[i]), b = float(vector[i + half]);
        vector[i] = scalar_t(a * cosines[i] - b * sines[i]);
        vector[i + half] = scalar_t(b * cosines[i] + a * sines[i]);
        // EXERCISE-END 4.2
    }
}
