// What the twins of kernels/wgmma.cuh read: tiles in shared memory, by the word that shared_operand makes of an
// address, and registers.
#pragma once

#ifdef EMULATOR_CHECK  // as in cuda_emulator.h
#define inline inline __attribute__((always_inline))
#endif

namespace emulator {

constexpr const char* kWgmma = "wgmma.mma_async";

// What a lane lays down.
struct LaneOperands {
    float* sums;
    const unsigned* registers;  // of the left operand; null: it is in shared memory
    uint64_t left, right;
};

// What is multiplied, by one warp.
struct Elements {
    uint16_t left[16][16];
    uint16_t right[1024];  // in the order of shared memory: 64 rows of 16; transposed, 16 rows of 64
};

// An operand has the lower 18 bits of an address: dynamic shared memory is from 0 on, static memory ends with the last.
constexpr unsigned kOperandEnd = 1u << 18;

static inline unsigned operand_address(uint64_t operand) { return (unsigned)(operand & 0x3fff) * 16; }

// Where the 16 bytes are that would lie at `address` if chunks had not other places in each row.
static inline unsigned chunk_place(unsigned address) { return address ^ (address >> 7 & 7) << 4; }

static inline char* chunk_pointer(unsigned address) {
    unsigned place = chunk_place(address);
    return shared_pointer(place < launch->dynamic_shared_bytes ? place : place + (kStaticEnd - kOperandEnd));
}

// steps: 16 columns further are 32 bytes, inside the first row.
static inline void check_operand(uint64_t operand, unsigned rows, bool steps) {
    unsigned address = operand_address(operand), first = steps ? address & ~0x60u : address, end = first + rows * 128;
    if ((operand >> 32 & 0x3fff) != 1024 / 16 || operand >> 62 != 1)
        refuse(kAssert, kWgmma, "of an operand in shared memory that shared_operand did not make");
    if (first % 1024) refuse(kMisaligned, kWgmma, "of a tile at an address that is no multiple of 1024");
    bool in_static = first >= static_address() - (kStaticEnd - kOperandEnd) && end <= kOperandEnd;
    if (end > launch->dynamic_shared_bytes && !in_static)
        refuse(kAssert, kWgmma, "of a tile that reaches beyond shared memory");
}

// ---- cp.async writes as a thread does: the thread must say so before a product reads

static inline void check_announced(unsigned address) {
    const Landing& last = landings[chunk_place(address) / 16];
    if (last.block == blocks_begun && last.announced == announced[last.thread])
        refuse(kAssert, kWgmma, "of a tile that a thread copied without shared_writes_for_wgmma after the wait");
}

// f(address) of each chunk of this lane's share of the operands, which together the 32 lanes read.
template <class F>
static inline void for_each_chunk(bool left_in_shared, uint64_t left, uint64_t right, bool transposed, F f) {
    unsigned lane = current & 31, chunks = transposed ? 8 : 2;
    for (unsigned i = 4 * lane; i < 4 * lane + 4; i++) f(operand_address(right) + i / chunks * 128 + i % chunks * 16);
    unsigned row = current % 128 / 32 * 16 + lane / 2;
    if (left_in_shared) f(operand_address(left) + row * 128 + lane % 2 * 16);
}

EMULATOR_MACHINE static void read_row(uint16_t* to, unsigned address, int chunks) {
    for (int c = 0; c < chunks; c++) memcpy(to + 8 * c, chunk_pointer(address + 16 * c), 16);
}

EMULATOR_MACHINE static void read_left(unsigned warp, uint64_t operand, Elements& to) {
    for (int r = 0; r < 16; r++) read_row(to.left[r], operand_address(operand) + (warp % 4 * 16 + r) * 128, 2);
}

// A lane's part of a left operand in registers.
EMULATOR_MACHINE static void take_left(int lane, const unsigned* a, Elements& to) {
    for (int i = 0; i < 4; i++) memcpy(&to.left[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8], &a[i], 4);
}

EMULATOR_MACHINE static void read_right(uint64_t operand, bool transposed, Elements& to) {
    int elements = transposed ? 64 : 16;
    for (int r = 0; r < 1024 / elements; r++)
        read_row(to.right + r * elements, operand_address(operand) + r * 128, elements / 8);
}

// 16 rows of sums, each over k in order.
template <class T, bool TRANSPOSED>
EMULATOR_MACHINE static void add_product(const Elements& e, float (*sums)[64]) {
    float right[16][64];
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 64; n++) right[k][n] = (float)T::from_bits(e.right[TRANSPOSED ? k * 64 + n : n * 16 + k]);
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++) {
            float left = (float)T::from_bits(e.left[row][k]);
            for (int n = 0; n < 64; n++) sums[row][n] += left * right[k][n];
        }
}

}  // namespace emulator

#undef inline
