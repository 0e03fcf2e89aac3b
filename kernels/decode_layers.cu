// kernels/decode_layers.cu: all layers of a decode step of 1 to 8 rows, in one kernel that stays.
//
// requires: sm_90; bfloat16; HIDDEN, NUM_HEADS * HEAD_DIM and INTERMEDIATE multiples of 256, the first two at most
// 4,096; HEAD_DIM 64 or 128; pages of 16 tokens, at most 8 query heads a key/value head. All blocks must run at the
// same time: launch it cooperatively, one block a multiprocessor. The kernels of decode_*.cu stand in where that does
// not hold.
//
// Such a step is a read of the weights, and the end of a kernel and the beginning of the next cost it a microsecond,
// five times a layer. Here each block has one warp that only fetches weights (decode_layers_ring.cuh), without a stop
// from the first layer to the last, and eight that multiply (decode_layers_products.cuh) and attend
// (decode_layers_attention.cuh). What a phase needs of other blocks it finds in the exchange words
// (decode_layers_exchange.cuh).
//
// Bytes: all weights of the layers once, and each key and value. For Llama-3.2-1B, 128 tokens a row, that is 462 us at
// 4.22 TB/s; measured on an H200: 534 us with 1 row, 601 with 8 (by the kernels of decode_*.cu: 591 and 645).
#include "decode_layers_attention.cuh"

constexpr int SHARED_BARRIERS = 128, SHARED_FIXED = SHARED_SUMS + SHARED_SQUARES + SHARED_STATES + SHARED_BARRIERS;
static_assert(SHARED_FIXED % 128 == 0, "bulk copies go to multiples of 16, best of 128");

// The phases of a layer, in their order. An epilogue has rows p and p + 8 of a tile for slot n, in thread 8p + n of 64.
struct Layers : Attention {
    using Attention::Attention;

    // Norm, the qkv product, RoPE, cache write.
    __device__ __forceinline__ void qkv() {
        int tile = first_tile(layer, QKV);
        if (tile >= QKV_COLUMNS / TILE) return;
        uint4 x[HIDDEN / CHUNK];
        take_normed(x, input(slots.to_read(lane_g())), layer > 0, static_cast<const bf16*>(address(INPUT_NORM)));
#pragma unroll 1
        for (; tile < QKV_COLUMNS / TILE; tile += gridDim.x) {
            const int head = tile / TILES_A_HEAD, i = tile % TILES_A_HEAD * 8 + threadIdx.x / 8 % 8;
            const float* angles = step.rope_table + (size_t)step.positions[slots.row_of(threadIdx.x % 8)] * HEAD_DIM;
            const float cosine = angles[i], sine = angles[HALF_DIM + i];
            Sums sum;
            multiply<HIDDEN>(sum, x);
            finish(sum, [&](int p, int n, float a, float b) {
                const bool turns = head < NUM_HEADS + NUM_KV_HEADS;  // values keep their place
                const float s = scale(n), c = turns ? cosine * s : s, d = turns ? sine * s : 0.0f;
                const float first = a * c - b * d, second = b * c + a * d;
                const float first_right = __shfl_down_sync(~0u, first, 8),
                            second_right = __shfl_down_sync(~0u, second, 8);
                if (p % 2) return;
                put_qkv(head, i, n, pack<bf16>(first, first_right), pack<bf16>(second, second_right));
            });
        }
    }
    // Dimensions i, i + 1 and, HALF_DIM further, two more of one head (of q's, then k's, then v's) for slot n.
    __device__ __forceinline__ void put_qkv(int head, int i, int n, unsigned first, unsigned second) const {
        const int at = AT_QKV + n * QKV_WORDS + (head * HEAD_DIM + i) / 2;
        exchange.put(at, first);
        exchange.put(at + HALF_DIM / 2, second);
        if (head < NUM_HEADS || n >= step.rows || step.slots[n] < 0) return;
        const int slot = step.slots[n], is_value = head >= NUM_HEADS + NUM_KV_HEADS;
        const int kv_head = head - NUM_HEADS - is_value * NUM_KV_HEADS;
        bf16* cache = const_cast<bf16*>(static_cast<const bf16*>(address(CACHE)));
        cache += ((size_t)(slot / PAGE) * NUM_KV_HEADS + kv_head) * 2 * PAGE_ELEMENTS;
        cache += is_value * PAGE_ELEMENTS + slot % PAGE * HEAD_DIM + i;
        *reinterpret_cast<unsigned*>(cache) = first;
        *reinterpret_cast<unsigned*>(cache + HALF_DIM) = second;
    }

    // Two neighbours of the residual stream of slot n, and what is added to them.
    __device__ __forceinline__ static unsigned add(unsigned residual, float a, float b) {
        return pack<bf16>(low(residual) + a, high(residual) + b);
    }

    // The output product, added to the residual stream.
    __device__ __forceinline__ void out() {
        int tile = first_tile(layer, OUT);
        if (tile >= HIDDEN / TILE) return;
        uint4 x[Q_COLUMNS / CHUNK];
        take(x, exchange.now + AT_ATTENDED + slots.to_read(lane_g()) * Q_WORDS);
#pragma unroll 1
        for (; tile < HIDDEN / TILE; tile += gridDim.x) {
            const int word = tile * 8 + threadIdx.x / 8 % 8;
            const unsigned *from = input(threadIdx.x % 8) + word, residual = load_word(from);
            Sums sum;
            multiply<Q_COLUMNS>(sum, x);
            finish(sum, [&](int p, int n, float a, float b) {
                const unsigned before = layer == 0 ? residual : await_word(residual, from);
                exchange.put(AT_OUT + n * HIDDEN_WORDS + word, add(before, a, b));
            });
        }
    }

    // Norm, gate and up product, SiLU(gate) * up.
    __device__ __forceinline__ void gate_up() {
        int tile = first_tile(layer, GATE_UP);
        const int mine = (INTERMEDIATE / 8 - tile + gridDim.x - 1) / gridDim.x;
        if (tile >= INTERMEDIATE / 8) return;
        uint4 x[HIDDEN / CHUNK];
        take_normed(x, exchange.now + AT_OUT + slots.to_read(lane_g()) * HIDDEN_WORDS, true,
                    static_cast<const bf16*>(address(POST_NORM)));
#pragma unroll 1
        for (int i = 0; tile < INTERMEDIATE / 8; i++, tile += gridDim.x) {
            Sums sum;
            multiply<HIDDEN>(sum, x);
            finish(sum, [&](int p, int n, float a, float b) {
                const float s = scale(n), gate = a * s, up = b * s;
                const float value = gate / (1.0f + exp2_of(-1.44269504f * gate)) * up;
                const float right = __shfl_down_sync(~0u, value, 8);
                if (p % 2 == 0)
                    exchange.put(AT_ACTIVATED + n * ACTIVATED_WORDS + tile * 4 + p / 2, pack<bf16>(value, right));
            });
            // Of more rows keys and values are too many: they would drive weights out of L2 before either is read.
            if (step.rows <= MAX_ROWS / 2) prefetch_next_layer(i, mine);
        }
    }

    // The down product, added to the residual stream; at the end of the last layer that is the kernel's result.
    __device__ __forceinline__ void down() {
        const unsigned* words = exchange.now + AT_ACTIVATED + slots.to_read(lane_g()) * ACTIVATED_WORDS;
#pragma unroll 1
        for (int tile = first_tile(layer, DOWN); tile < HIDDEN / TILE; tile += gridDim.x) {
            const int word = tile * 8 + threadIdx.x / 8 % 8;
            const unsigned* from = exchange.now + AT_OUT + threadIdx.x % 8 * HIDDEN_WORDS + word;
            const unsigned residual = load_word(from);
            Sums sum;
            multiply_activated<INTERMEDIATE>(sum, words);
            finish(sum, [&](int p, int n, float a, float b) {
                const unsigned pair = add(await_word(residual, from), a, b);
                exchange.put(AT_DOWN + n * HIDDEN_WORDS + word, pair);
                if (layer + 1 == step.num_layers && n < step.rows)
                    reinterpret_cast<unsigned*>(step.hidden)[n * HIDDEN_WORDS + word] = pair;
            });
        }
    }
    // All activations of a row would not fit a lane's registers: two parts of them take turns, one being multiplied,
    // one on its way.
    template <int K>
    __device__ __forceinline__ void multiply_activated(Sums& sum, const unsigned* words) {
        constexpr int COLUMNS = HEAD_DIM == 64 ? 2048 : 1024, PARTS = K / COLUMNS, REST = K % COLUMNS,
                      WORDS = COLUMNS / 2;
        uint4 x[COLUMNS / CHUNK], y[COLUMNS / CHUNK];
        if constexpr (PARTS > 0) ask(x, words);
#pragma unroll 1
        for (int part = 0; part < PARTS; part += 2, words += 2 * WORDS) {
            if (part + 1 < PARTS) ask(y, words + WORDS);
            await(x, words);
            multiply<COLUMNS>(sum, x);
            if (part + 1 == PARTS) break;
            if (part + 2 < PARTS) ask(x, words + 2 * WORDS);
            await(y, words + WORDS);
            multiply<COLUMNS>(sum, y);
        }
        if constexpr (REST > 0) {
            uint4 z[REST / CHUNK];
            take(z, words + PARTS % 2 * WORDS);
            multiply<REST>(sum, z);
        }
    }
};

// Grid: as many blocks as are to share the weights, at most one a multiprocessor; THREADS threads; dynamic shared
// memory: SHARED_FIXED bytes and STAGE_BYTES for each of `stages` stages of the ring.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    decode_layers(__nv_bfloat16* hidden,                // (rows, HIDDEN): the residual stream, before and after
                  const unsigned long long* addresses,  // (num_layers, ADDRESSES): of matrices, norms, the cache
                  const int* positions,                 // (rows,)
                  const int* slots,                     // (rows,); -1: nowhere
                  const int* seq_lens,                  // (rows,): the new token included; 0: attends to nothing
                  const int* block_table,               // (rows, table_width)
                  const float* rope_table,              // (P, HEAD_DIM): cosines in the first half, sines in the second
                  unsigned* exchange,  // (2, num_layers, words of a layer), EMPTY before the first step
                  int* state,          // (2,): zeros before the first step, and the kernel's from then on
                  int rows, int num_layers, int table_width, int stages, float eps) {
    extern __shared__ __align__(128) float shared[];
    const Step step = {hidden,     addresses, positions,  slots,       seq_lens, block_table,
                       rope_table, rows,      num_layers, table_width, eps};
    const unsigned start = shared_address(shared);
    const Ring ring(start + SHARED_FIXED, start + SHARED_FIXED - SHARED_BARRIERS, stages);
    const Exchange words(exchange, state, num_layers);
    if (threadIdx.x == 0) ring.init();
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        fetch_weights(ring, Walk(addresses, num_layers), rows <= MAX_ROWS / 2 ? LEAD : 0);
        return;
    }
    Layers layers(step, ring, words, shared);
#pragma unroll 1  // the code has to stay in the instruction cache
    for (; layers.layer < num_layers; layers.layer++, layers.exchange.advance()) {
        if (layers.layer + 1 == num_layers) launch_next_kernel();
        layers.qkv();
        layers.attention();
        layers.out();
        layers.gate_up();
        layers.down();
    }
    if (threadIdx.x == 0) end_step(state);
}
