// kernels/decode_layers_products.cuh: what the products of decode_layers.cu have in common.
//
// The left operand of mma.sync are 16 rows of weights out of the ring, the right one the 8 slots of the step's rows.
// The warps share the columns, 32 of each 256; a lane holds its part of a slot's row in registers for all tiles of a
// phase. Columns may be added up in any order that both operands share, so lane (g, t) takes the 8 neighbours 8t, 8t+1,
// ... of a warp's 32, 16 bytes, of weight rows g and g+8 and of slot g. Partial sums meet in shared memory, once a
// tile.
#pragma once
#include "decode_layers_exchange.cuh"
#include "decode_layers_ring.cuh"

constexpr int SUM_FLOATS = TILE * MAX_ROWS;              // of a tile
constexpr int SHARED_SUMS = 2 * WARPS * SUM_FLOATS * 4;  // two tiles: while one is read, the next is written
constexpr int SHARED_SQUARES = 2 * WARPS * MAX_ROWS * 4;

__device__ __forceinline__ int lane_g() { return threadIdx.x % 32 / 4; }
__device__ __forceinline__ int lane_t() { return threadIdx.x % 4; }

// What a launch is given; see decode_layers.
struct Step {
    bf16* hidden;
    const unsigned long long* addresses;
    const int *positions, *slots, *seq_lens, *block_table;
    const float* rope_table;
    int rows, num_layers, table_width;
    float eps;
};

// Sums of a tile, in two halves: half the wait for one product before the next.
struct Sums {
    float even[4] = {}, odd[4] = {};
};

// A multiplying warp's view of the step, and what all phases do.
struct Products {
    const Step& step;
    Ring ring;
    Exchange exchange;
    Slots slots;
    float *sums, *squares;  // in shared memory
    int layer, tiles_done, norms_done;

    __device__ __forceinline__ Products(const Step& step, const Ring& ring, const Exchange& exchange, float* shared)
        : step(step),
          ring(ring),
          exchange(exchange),
          slots(step.rows),
          sums(shared),
          squares(shared + SHARED_SUMS / 4),
          layer(0),
          tiles_done(0),
          norms_done(0) {}

    __device__ __forceinline__ const void* address(int which) const {
        return reinterpret_cast<const void*>(__ldg(step.addresses + layer * ADDRESSES + which));
    }

    // ---- the right operand: this warp's columns of the rows, in registers; lane (g, t) has 8 columns of slot g

    // Words of one slot: an area of the exchange words, or for the first layer's input the row itself.
    __device__ __forceinline__ const unsigned* input(int slot) const {
        if (layer == 0) return reinterpret_cast<const unsigned*>(step.hidden) + slots.row_of(slot) * HIDDEN_WORDS;
        return exchange.now - exchange.layer_words + AT_DOWN + slot * HIDDEN_WORDS;
    }
    template <int N>
    __device__ __forceinline__ void take(uint4 (&x)[N], const unsigned* words, bool waits = true) const {
        ask(x, words);
        if (waits) await(x, words);
    }
    template <int N>
    __device__ __forceinline__ void ask(uint4 (&x)[N], const unsigned* words) const {
        ask_words(x, words + threadIdx.x / 32 * 16 + lane_t() * 4, CHUNK / 2);
    }
    template <int N>
    __device__ __forceinline__ void await(uint4 (&x)[N], const unsigned* words) const {
        await_words(x, words + threadIdx.x / 32 * 16 + lane_t() * 4, CHUNK / 2);
        __syncwarp();
    }
    __device__ __forceinline__ void take_gain(uint4 (&w)[HIDDEN / CHUNK], const bf16* gain) const {
#pragma unroll
        for (int j = 0; j < HIDDEN / CHUNK; j++)
            w[j] = __ldg(reinterpret_cast<const uint4*>(gain + j * CHUNK + threadIdx.x / 32 * 32 + lane_t() * 8));
    }
    // RMSNorm, but for the factor 1 / rms of a row, which is left to the epilogue (scale): products need not wait for
    // the sum of squares.
    __device__ __forceinline__ void take_normed(uint4 (&x)[HIDDEN / CHUNK], const unsigned* words, bool waits,
                                                const bf16* gain) {
        uint4 w[HIDDEN / CHUNK];
        if (HIDDEN <= 2048) take_gain(w, gain);  // ahead of the rows, where there are registers for both
        take(x, words, waits);
        if (HIDDEN > 2048) take_gain(w, gain);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < HIDDEN / CHUNK; j++) {
            sum += square(x[j].x) + square(x[j].y) + square(x[j].z) + square(x[j].w);
            x[j] =
                make_uint4(times(x[j].x, w[j].x), times(x[j].y, w[j].y), times(x[j].z, w[j].z), times(x[j].w, w[j].w));
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        norms_done ^= 1;
        if (lane_t() == 0) squares[(norms_done * WARPS + threadIdx.x / 32) * MAX_ROWS + lane_g()] = sum;
    }
    __device__ __forceinline__ static float low(unsigned pair) { return __uint_as_float(pair << 16); }
    __device__ __forceinline__ static float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
    __device__ __forceinline__ static float square(unsigned pair) {
        return low(pair) * low(pair) + high(pair) * high(pair);
    }
    __device__ __forceinline__ static unsigned times(unsigned a, unsigned b) {
        return pack<bf16>(low(a) * low(b), high(a) * high(b));
    }
    // 1 / rms of a slot's row; after the block has met.
    __device__ __forceinline__ float scale(int slot) const {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += squares[(norms_done * WARPS + w) * MAX_ROWS + slot];
        return rsqrtf(sum / HIDDEN + step.eps);
    }

    // ---- products

    // sum += the next stage of the ring times x, CHUNKS chunks of columns.
    template <int CHUNKS>
    __device__ __forceinline__ void multiply_stage(Sums& sum, const uint4* x) {
        barrier_wait(ring.full + 8 * ring.slot, ring.lap);
        __syncwarp();
        const unsigned at =
            ring.data + ring.slot * STAGE_BYTES + lane_g() * ROW_BYTES + threadIdx.x / 32 * 64 + lane_t() * 16;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const uint4 a = load_shared(at + c * CHUNK * 2), b = load_shared(at + c * CHUNK * 2 + 8 * ROW_BYTES);
            mma_16x8x16<bf16>(sum.even, {a.x, b.x, a.y, b.y}, x[c].x, x[c].y);
            mma_16x8x16<bf16>(sum.odd, {a.z, b.z, a.w, b.w}, x[c].z, x[c].w);
        }
        __syncwarp();
        // The condition always holds. It makes the arrival wait for the products, so for the loads: it could overtake
        // loads that stand behind a burst of asking for words, and the next copy would overwrite what they read.
        if (threadIdx.x % 32 == 0 && __float_as_uint(sum.even[0]) != EMPTY - 1)
            barrier_arrive(ring.empty + 8 * ring.slot);
        ring.advance();
    }
    // The same for K columns.
    template <int K>
    __device__ __forceinline__ void multiply(Sums& sum, const uint4* x) {
#pragma unroll
        for (int s = 0; s < K / STAGE_COLUMNS; s++)
            multiply_stage<STAGE_COLUMNS / CHUNK>(sum, x + s * (STAGE_COLUMNS / CHUNK));
        if constexpr (K % STAGE_COLUMNS > 0)
            multiply_stage<K % STAGE_COLUMNS / CHUNK>(sum, x + K / STAGE_COLUMNS * (STAGE_COLUMNS / CHUNK));
    }
    // Add up a tile over the warps: epilogue(p, n, row p, row p + 8) by threads below 64.
    template <class Epilogue>
    __device__ __forceinline__ void finish(const Sums& sum, Epilogue epilogue) {
        float* tile = sums + tiles_done % 2 * WARPS * SUM_FLOATS;
        float* mine = tile + threadIdx.x / 32 * SUM_FLOATS + lane_g() * 8 + 2 * lane_t();
        tiles_done++;
        *reinterpret_cast<float2*>(mine) = make_float2(sum.even[0] + sum.odd[0], sum.even[1] + sum.odd[1]);
        *reinterpret_cast<float2*>(mine + 64) = make_float2(sum.even[2] + sum.odd[2], sum.even[3] + sum.odd[3]);
        sync_first_threads<CONSUMERS>();
        if (threadIdx.x >= 64) return;
        float upper = 0.0f, lower = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            upper += tile[w * SUM_FLOATS + threadIdx.x];
            lower += tile[w * SUM_FLOATS + 64 + threadIdx.x];
        }
        epilogue(threadIdx.x / 8, threadIdx.x % 8, upper, lower);
    }
};
