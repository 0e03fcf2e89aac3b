// kernels/decode_layers_shape.cuh: the model's shape, and which weights each block of decode_layers.cu multiplies.
//
// A layer has four products, its phases. The rows of their matrices go in tiles of 16, and tiles to blocks in turn, on
// and on through phases and layers: where a phase has one tile for some blocks and two for others, the next layer has
// it the other way round. Rows p and p + 8 of a tile are two whose results meet in an epilogue: what RoPE turns
// together, a gate and its up, two neighbours of the residual.
#pragma once
#ifndef HEAD_DIM
#error "decode_layers.cu is compiled for one model: give -DHEAD_DIM=64, and -DHIDDEN=... and the rest"
#endif
#ifndef HIDDEN  // Llama-3.2-1B's
#define HIDDEN 2048
#define INTERMEDIATE 8192
#define NUM_HEADS 32
#define NUM_KV_HEADS 8
#endif
#include <cuda_bf16.h>
typedef __nv_bfloat16 bf16;

constexpr int GROUP = NUM_HEADS / NUM_KV_HEADS, HALF_DIM = HEAD_DIM / 2;
constexpr int Q_COLUMNS = NUM_HEADS * HEAD_DIM, QKV_COLUMNS = Q_COLUMNS + 2 * NUM_KV_HEADS * HEAD_DIM;
constexpr int MAX_ROWS = 8;  // of a step: the columns of a product on tensor cores
constexpr int TILE = 16;     // rows of weights
constexpr int PAGE = 16;     // tokens in a block of the cache
constexpr int WARPS = 8, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 32;  // and one warp that fetches
constexpr int CHUNK = 32 * WARPS;                                           // columns: 32 for each warp
constexpr int TILES_A_HEAD = HEAD_DIM / TILE;
static_assert(HIDDEN % CHUNK == 0 && Q_COLUMNS % CHUNK == 0 && INTERMEDIATE % CHUNK == 0, "warps share columns evenly");
static_assert(HIDDEN <= 4096 && Q_COLUMNS <= 4096, "a lane holds its part of a row in registers");
static_assert(HEAD_DIM % 64 == 0 && GROUP <= MAX_ROWS, "attention's products");

enum Phase { QKV, OUT, GATE_UP, DOWN, PHASES };
// Of a layer's row of addresses: the four matrices in the order of the phases, then
enum Address { INPUT_NORM = PHASES, POST_NORM, CACHE, ADDRESSES };

__device__ __forceinline__ int columns_of(int phase) {
    return phase == DOWN ? INTERMEDIATE : phase == OUT ? Q_COLUMNS : HIDDEN;
}
__device__ __forceinline__ int tiles_of(int phase) {
    return phase == QKV ? QKV_COLUMNS / TILE : phase == GATE_UP ? 2 * INTERMEDIATE / TILE : HIDDEN / TILE;
}
__device__ __forceinline__ int first_tile(int layer, int phase) {
    constexpr int QKV_TILES = QKV_COLUMNS / TILE, HIDDEN_TILES = HIDDEN / TILE, GATE_UP_TILES = 2 * INTERMEDIATE / TILE;
    unsigned before = layer * (QKV_TILES + 2 * HIDDEN_TILES + GATE_UP_TILES);
    if (phase > QKV) before += QKV_TILES;
    if (phase > OUT) before += HIDDEN_TILES;
    if (phase > GATE_UP) before += GATE_UP_TILES;
    return (blockIdx.x + gridDim.x - before % gridDim.x) % gridDim.x;
}
// Row of the matrix that is row r of a tile.
__device__ __forceinline__ int weight_row(int phase, int tile, int r) {
    const int p = r % 8, second = r / 8;
    if (phase == QKV) return tile / TILES_A_HEAD * HEAD_DIM + tile % TILES_A_HEAD * 8 + p + second * HALF_DIM;
    if (phase == GATE_UP) return tile * 8 + p + second * INTERMEDIATE;
    return tile * TILE + 2 * p + second;
}
