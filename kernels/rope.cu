// kernels/rope.cu: what the engine runs. The lesson's is in chapters/ch04_rope.
//
// Rotary position embedding (Su et al., 2021), in place. In each head, elements i and i + head_dim / 2 are a point in
// the plane (the pairing of Llama checkpoints in Hugging Face's layout), turned by the angle position * inv_freq[i]:
//   first'  = first * cos - second * sin
//   second' = second * cos + first * sin
// One block a token, for all heads of q and then of k; thread p owns pairs p, p + blockDim.x, ... of them. It reads
// both halves before it writes, and nobody else touches them.
// Bytes: q and k read and written once, 2 * T * (num_heads + num_kv_heads) * head_dim * sizeof(scalar_t).
#include "dtype.cuh"

// heads: num_pairs pairs, head after head. angles: cosines, then sines, of this position.
__device__ __forceinline__ void rotate(scalar_t* heads, const float* angles, int num_pairs, int half) {
    for (int p = threadIdx.x; p < num_pairs; p += blockDim.x) {
        const int i = p % half;
        scalar_t* head = heads + p / half * 2 * half;
        const float first = float(head[i]), second = float(head[i + half]);
        const float cosine = angles[i], sine = angles[i + half];
        head[i] = scalar_t(first * cosine - second * sine);
        head[i + half] = scalar_t(second * cosine + first * sine);
    }
}

extern "C" __global__ void rope(scalar_t* q,           // (T, num_heads * head_dim), rows q_stride apart
                                scalar_t* k,           // (T, num_kv_heads * head_dim), rows k_stride apart
                                const int* positions,  // (T,), each in [0, P)
                                const float* table,    // (P, head_dim): cosines in the first half, sines in the second
                                int q_stride, int k_stride, int num_heads, int num_kv_heads, int head_dim) {
    const int token = blockIdx.x, half = head_dim / 2;
    const float* angles = table + (size_t)positions[token] * head_dim;
    rotate(q + (size_t)token * q_stride, angles, num_heads * half, half);
    rotate(k + (size_t)token * k_stride, angles, num_kv_heads * half, half);
}
