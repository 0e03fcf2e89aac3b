// kernels/rope.cu: what the engine runs. The lesson's is in chapters/ch04_rope.
//
// Rotary position embedding (Su et al., 2021), in place. In each head, elements i and i + head_dim / 2 are a point in
// the plane (the pairing of Llama checkpoints in Hugging Face's layout), turned by the angle position * inv_freq[i]:
//   first'  = first * cos - second * sin
//   second' = second * cos + first * sin
// One block a token, for all heads of q and then of k; thread p owns pairs p, p + blockDim.x, ... of them, WIDTH pairs
// at a time where halves and rows are whole vectors. It reads both halves before it writes, and nobody else touches
// them.
// Bytes: q and k read and written once, 2 * T * (num_heads + num_kv_heads) * head_dim * sizeof(scalar_t).
// For 8,192 tokens, 32 and 8 heads of 64 in bfloat16 that is 19.9 us at 4.22 TB/s; measured within a step on an H200
// 22.9 us. Where write_kv.cu follows, rope_kv.cu does both.
#include "vectors.cuh"

__device__ __forceinline__ void turn(scalar_t& first, scalar_t& second, float cosine, float sine) {
    const float x = float(first), y = float(second);
    first = scalar_t(x * cosine - y * sine);
    second = scalar_t(y * cosine + x * sine);
}

// heads: num_pairs pairs, head after head. angles: cosines, then sines, of this position.
__device__ __forceinline__ void rotate(scalar_t* heads, const float* angles, int num_pairs, int half) {
    for (int p = threadIdx.x; p < num_pairs; p += blockDim.x) {
        const int i = p % half;
        scalar_t* first = heads + p / half * 2 * half + i;
        turn(first[0], first[half], angles[i], angles[i + half]);
    }
}

__device__ __forceinline__ void rotate_vectors(scalar_t* heads, const float* angles, int num_pairs, int half) {
    for (int p = threadIdx.x * WIDTH; p < num_pairs; p += blockDim.x * WIDTH) {
        const int i = p % half;
        scalar_t* first = heads + p / half * 2 * half + i;
        Vector x = load(first), y = load(first + half);
        for (int j = 0; j < WIDTH; j++) turn(x.x[j], y.x[j], angles[i + j], angles[i + j + half]);
        store(first, x);
        store(first + half, y);
    }
}

extern "C" __global__ void rope(scalar_t* q,           // (T, num_heads * head_dim), rows q_stride apart
                                scalar_t* k,           // (T, num_kv_heads * head_dim), rows k_stride apart
                                const int* positions,  // (T,), each in [0, P)
                                const float* table,    // (P, head_dim): cosines in the first half, sines in the second
                                int q_stride, int k_stride, int num_heads, int num_kv_heads, int head_dim) {
    const int token = blockIdx.x, half = head_dim / 2;
    const float* angles = table + (size_t)positions[token] * head_dim;
    q += (size_t)token * q_stride, k += (size_t)token * k_stride;
    if (half % WIDTH == 0 && q_stride % WIDTH == 0 && k_stride % WIDTH == 0) {
        rotate_vectors(q, angles, num_heads * half, half);
        rotate_vectors(k, angles, num_kv_heads * half, half);
    } else {
        rotate(q, angles, num_heads * half, half);
        rotate(k, angles, num_kv_heads * half, half);
    }
}
