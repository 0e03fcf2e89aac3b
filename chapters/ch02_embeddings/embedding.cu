// chapters/ch02_embeddings/embedding.cu: the worked solution of chapter 02. The engine runs kernels/embed.cu.
//
// Token ids to vectors: out[t] = table[tokens[t]], a copy of one row of the embedding table for each token.
// Floor, what any kernel for this must move: each row is read once and written once, 2 * num_tokens * hidden elements.
// An element is a scalar_t: float, bfloat16 or half, chosen when the kernel is compiled (kernels/dtype.cuh).
// Rungs are kernels for the same thing, the plainest first.
#include "dtype.cuh"

// The first rung. Grid ceil(num_tokens / blockDim.x), any block: thread t of the grid owns the whole row t.
// Neighbouring threads write `hidden` elements apart, so each write moves a piece of memory for one element of it.
extern "C" __global__ void embed_one_thread(const int* tokens,      // (num_tokens,)
                                            const scalar_t* table,  // (vocab_size, hidden)
                                            scalar_t* out,          // (num_tokens, hidden)
                                            int num_tokens, int hidden) {
    int t = threadIdx.x + blockIdx.x * blockDim.x;
    if (t >= num_tokens) return;
    const scalar_t* source = table + (size_t)tokens[t] * hidden;
    scalar_t* target = out + (size_t)t * hidden;
    for (int c = 0; c < hidden; c++) target[c] = source[c];
}

// The second rung. Grid (num_tokens), any block: block t owns row t, and its thread i owns the columns
// i, i + blockDim.x, i + 2 * blockDim.x ... Neighbouring threads touch neighbouring elements.
extern "C" __global__ void embed(const int* tokens,      // (num_tokens,)
                                 const scalar_t* table,  // (vocab_size, hidden)
                                 scalar_t* out,          // (num_tokens, hidden)
                                 int hidden) {
    const scalar_t* source = table + (size_t)tokens[blockIdx.x] * hidden;
    scalar_t* target = out + (size_t)blockIdx.x * hidden;
    // EXERCISE-BEGIN 2.2 (about 1 line): copy the columns that this thread owns
    for (int c = threadIdx.x; c < hidden; c += blockDim.x) target[c] = source[c];
    // EXERCISE-END 2.2
}
