// kernels/decode_layers_ring.cuh: a block's weights on their way, through a ring in shared memory.
//
// One warp fetches: it walks over all stages of the block's tiles, from the first layer to the last, and looks at no
// activation, so while the others wait for another block the weights keep coming until the ring is full. A stage is
// 1,024 columns of a tile's 16 rows, 32 KiB. Two barriers a slot: `full` when its bytes are there, `empty` when all
// warps have read them. Only IN_FLIGHT stages are asked for at a time: more would stand in the memory system in front
// of the words that blocks hand each other. While the ring is full, up to LEAD further stages are brought into L2, no
// faster than memory gives.
#pragma once
#include "decode_layers_shape.cuh"
#include "sm90.cuh"

constexpr int STAGE_COLUMNS = 1024;
constexpr int ROW_BYTES =
    STAGE_COLUMNS * 2 + 64;  // so that 8 lanes, which read 4 times 16 bytes of two rows, meet all banks
constexpr int STAGE_BYTES = TILE * ROW_BYTES;
constexpr int IN_FLIGHT = 2, LEAD = 8;
constexpr int PACE = STAGE_COLUMNS * 5 / 3;  // clocks that a stage takes at the memory's bandwidth

// Where both sides are in the ring.
struct Ring {
    unsigned data, full, empty;  // in shared memory
    int stages;
    int slot = 0;
    unsigned lap = 0;  // parity of how often the ring was gone round

    __device__ __forceinline__ Ring(unsigned data, unsigned barriers, int stages)
        : data(data), full(barriers), empty(barriers + 8 * stages), stages(stages) {}
    __device__ __forceinline__ void init() const {
        for (int i = 0; i < stages; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, WARPS);
        barrier_init_done();
    }
    __device__ __forceinline__ void advance() {
        if (++slot == stages) slot = 0, lap ^= 1;
    }
};

// A place in all that a block multiplies, stage by stage.
struct Walk {
    const unsigned long long* addresses;  // (num_layers, ADDRESSES)
    int num_layers, layer, phase, tile, column;
    const bf16* matrix;

    __device__ __forceinline__ Walk(const unsigned long long* addresses, int num_layers)
        : addresses(addresses), num_layers(num_layers), layer(0), phase(QKV) {
        begin_phase();
    }
    __device__ __forceinline__ bool is_over() const { return layer == num_layers; }
    // This phase, or the next one that has a tile for the block.
    __device__ __forceinline__ void begin_phase() {
        for (column = 0; !is_over(); phase = (phase + 1) % PHASES, layer += phase == QKV) {
            tile = first_tile(layer, phase);
            if (tile >= tiles_of(phase)) continue;
            matrix = reinterpret_cast<const bf16*>(__ldg(addresses + layer * ADDRESSES + phase));
            return;
        }
    }
    __device__ __forceinline__ void advance() {
        if ((column += STAGE_COLUMNS) < columns_of(phase)) return;
        column = 0;
        if ((tile += gridDim.x) < tiles_of(phase)) return;
        phase = (phase + 1) % PHASES;
        layer += phase == QKV;
        begin_phase();
    }
    __device__ __forceinline__ const bf16* row(int r) const {
        return matrix + (size_t)weight_row(phase, tile, r) * columns_of(phase) + column;
    }
    __device__ __forceinline__ int bytes_a_row() const { return 2 * min(STAGE_COLUMNS, columns_of(phase) - column); }
};

__device__ __forceinline__ void copy_stage(const Walk& walk, const Ring& ring, unsigned long long policy) {
    const int r = threadIdx.x % 32, bytes = walk.bytes_a_row();
    const unsigned full = ring.full + 8 * ring.slot;
    if (r == 0) barrier_expect(full, TILE * bytes);
    __syncwarp();
    if (r < TILE) bulk_copy(ring.data + ring.slot * STAGE_BYTES + r * ROW_BYTES, walk.row(r), bytes, full, policy);
}

// Wait until the stage IN_FLIGHT before the next one has come in; ring is where the next one will go.
__device__ __forceinline__ void wait_for_earlier(const Ring& ring) {
    const int back = ring.slot - IN_FLIGHT;
    barrier_wait(ring.full + 8 * (back < 0 ? back + ring.stages : back), back < 0 ? ring.lap ^ 1 : ring.lap);
}

// The fetching warp's whole work. lead: stages that it may bring into L2 beyond the ring.
__device__ __forceinline__ void fetch_weights(Ring ring, Walk walk, int lead) {
    const unsigned long long policy = evict_first();
    Walk ahead = walk;
    int led = 0;  // stages that `ahead` is in front of walk
    long long asked = clock64();
    for (int s = 0; !walk.is_over(); s++) {
        const unsigned empty = ring.empty + 8 * ring.slot;
        while (!barrier_is_over(empty, ring.lap ^ 1)) {
            if (led < lead && !ahead.is_over() && clock64() - asked > PACE) {
                if (threadIdx.x % 32 < TILE) bulk_prefetch(ahead.row(threadIdx.x % 32), ahead.bytes_a_row());
                ahead.advance();
                led++;
                asked = clock64();
            }
            __syncwarp();
        }
        if (s >= IN_FLIGHT) wait_for_earlier(ring);
        copy_stage(walk, ring, policy);
        asked = clock64();
        ring.advance();
        walk.advance();
        if (led > 0) led--;
        else ahead = walk;
    }
}
