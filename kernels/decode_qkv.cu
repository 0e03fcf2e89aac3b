// kernels/decode_qkv.cu: norm, the qkv product, RoPE and the write into the cache for up to 8 tokens: a decode step's
// way into attention.
//
// requires: sm_80, 16-bit SCALAR; K a multiple of 64, HEAD_DIM of 16
//
// Grid: any number of blocks, of THREADS threads; dynamic shared memory: the queue, the prepared rows, the warps' sums.
// A tile of gemv.cuh is 8 rows of a head and the 8 rows HEAD_DIM / 2 further, which RoPE turns with them (rope.cu):
// thread 16 * n + r has one of a pair of token n, and the lane 8 further the other. Queries are left in q; keys and
// values go into their slots (write_kv.cu) and nowhere else.
// Bytes: the weights once, 2 * (num_heads + 2 * num_kv_heads) * HEAD_DIM * K: 3.0 us for Llama-3.2-1B at 4.22 TB/s.
// Measured on an H200 as part of a layer (gemv.cuh): 36.9 us, 8 rows 40.3.
#include "norm_rows.cuh"
#ifndef HEAD_DIM
#error "decode_qkv.cu is compiled for one head size: give -DHEAD_DIM=64"
#endif

constexpr int HALF = HEAD_DIM / 2, TILES_A_HEAD = HEAD_DIM / TILE;
static_assert(HEAD_DIM % TILE == 0, "a tile lies in one head");

struct Rows {
    static constexpr int apart = HALF;
    __device__ __forceinline__ int first(int tile) const {
        return tile / TILES_A_HEAD * HEAD_DIM + tile % TILES_A_HEAD * (TILE / 2);
    }
};

// Where one token's outputs go.
struct Token {
    scalar_t* q;
    scalar_t* key;     // head 0's; null: it has no slot
    size_t head_size;  // of a block of the cache: keys, and as many values

    // Element `dim` of head `head`: of q's, then k's, then v's.
    __device__ __forceinline__ void put(int head, int dim, float value, int num_heads, int num_kv_heads) const {
        if (head < num_heads) q[head * HEAD_DIM + dim] = scalar_t(value);
        else if (key != nullptr) {
            const int is_value = head >= num_heads + num_kv_heads;
            const int kv_head = head - num_heads - is_value * num_kv_heads;
            key[(2 * kv_head + is_value) * head_size + dim] = scalar_t(value);
        }
    }
};

__device__ __forceinline__ Token place_token(scalar_t* q, scalar_t* kv, int slot, int num_kv_heads, int block_size) {
    const size_t head_size = (size_t)block_size * HEAD_DIM;
    scalar_t* key = kv + slot / block_size * (2 * num_kv_heads * head_size) + slot % block_size * HEAD_DIM;
    return {q, slot < 0 ? nullptr : key, head_size};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    decode_qkv(const scalar_t* x,       // (rows, K)
               const scalar_t* gain,    // (K,)
               const scalar_t* weight,  // ((num_heads + 2 * num_kv_heads) * HEAD_DIM, K)
               scalar_t* q,             // (rows, num_heads * HEAD_DIM), rows q_stride apart
               scalar_t* kv,            // (blocks, num_kv_heads, 2, block_size, HEAD_DIM)
               const int* positions,    // (rows,), each in [0, P)
               const int* slots,        // (rows,); -1: nowhere
               const float* table,      // (P, HEAD_DIM): cosines in the first half, sines in the second
               int rows, int K, int q_stride, int num_heads, int num_kv_heads, int block_size, float eps) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int n = threadIdx.x / TILE, r = threadIdx.x % TILE, tiles = (num_heads + 2 * num_kv_heads) * TILES_A_HEAD;
    const int slot = n < rows ? slots[n] : -1;  // the plan of the step is older than the kernel before this one
    const float* angles = table + (n < rows ? (size_t)positions[n] * HEAD_DIM : 0);
    const Token token = place_token(q + (size_t)n * q_stride, kv, slot, num_kv_heads, block_size);
    const NormedPlaces places(shared, rows, K);
    Norm norm(gain, nullptr, rows, K);
    Stream<Rows, SharedRows> stream(weight, K, tiles, places.queue, Rows(),
                                    SharedRows(places.rows, rows, prepared_stride(K)));
    stream.begin();
    wait_for_previous_kernel();
    norm.prepare(places, x, eps);
    for (int turn = 0, tile = blockIdx.x; tile < tiles; turn++, tile += gridDim.x) {
        const int head = tile / TILES_A_HEAD, i = tile % TILES_A_HEAD * (TILE / 2) + r % (TILE / 2);
        const bool second = r >= TILE / 2, turns = head < num_heads + num_kv_heads;  // values keep their place
        const float cosine = angles[i], sine = angles[HALF + i];  // ahead of the product that they meet
        float sum[4] = {};
        stream.multiply(sum);
        const float value = norm.scale * add_warps(places.partial, sum, turn, rows);
        const float other = __shfl_xor_sync(~0u, value, TILE / 2);
        const float turned = turns ? value * cosine + (second ? other : -other) * sine : value;
        if (n < rows) token.put(head, i + second * HALF, turned, num_heads, num_kv_heads);
    }
}
