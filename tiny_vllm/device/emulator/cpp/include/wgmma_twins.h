// The twins of kernels/wgmma.cuh: products of a warpgroup, warp by warp, each as late as a GPU may make it.
//
// From wgmma_64x64x16 until the wgmma_wait that covers it, the caller's array of sums holds NaN. At the wait the
// product is made of what its operands in shared memory hold then. That must be what they held at first, and nobody may
// have written to the sums: so a missing commit or wait, and what comes too early, show. A left operand in registers is
// read at once, since its array may be gone by the wait.
#pragma once

#include "wgmma_sums.h"

#ifdef EMULATOR_CHECK  // as in cuda_emulator.h
#define inline inline __attribute__((always_inline))
#endif

namespace emulator {

constexpr unsigned kMaxProducts = 64;  // of one warp, on their way at one time

using AddProduct = void (*)(const Elements&, float (*)[64]);

struct Product {
    Sums* sums;
    AddProduct add;
    bool transposed;
    uint64_t left, right;  // left: 0 for registers
    Elements first;        // what the operands held when it was begun
};

struct ProductQueue {
    uint64_t block;  // whose products these are; another block finds the queue empty
    bool may_begin;
    uint64_t begun_ever;  // in this block
    unsigned begun, num_groups;
    unsigned group_end[kMaxProducts];
    Product products[kMaxProducts];
    Sums sums[kMaxSums];
};

// What a warp of a warpgroup began, for the other three.
struct Begun {
    uint64_t block, number, left, right;
    AddProduct add;
};

constexpr unsigned kMaxBegun = 256;  // how many products a warp may be ahead of another and still be compared with it

static Begun warpgroup_products[kMaxWarps / 4][kMaxBegun];
static LaneOperands lane_operands[kMaxWarps][kWarpSize];
static ProductQueue product_queues[kMaxWarps];

// When the threads of a block have returned.
EMULATOR_MACHINE static void check_ended() {
    for (unsigned w = 0; w < num_warps; w++) {
        const ProductQueue &queue = product_queues[w], &first = product_queues[w & ~3u];
        make_current(w * 32);  // for the message
        uint64_t begun = queue.block == blocks_begun ? queue.begun_ever : 0;
        if (begun != (first.block == blocks_begun ? first.begun_ever : 0))
            refuse(kAssert, kWgmma, "that not every warp of the warpgroup began");
        if (begun && queue.begun)
            refuse(kAssert, kWgmma, "that no commit and wait covered before its threads returned");
    }
}

EMULATOR_MACHINE static ProductQueue& product_queue(unsigned w) {
    ProductQueue& queue = product_queues[w];
    if (queue.block != blocks_begun) {
        queue.block = blocks_begun;
        queue.begun_ever = queue.begun = queue.num_groups = 0, queue.may_begin = false;
        for (Sums& each : queue.sums) each.products = 0;
        block_ends = check_ended;
    }
    return queue;
}

// ---- begin

EMULATOR_MACHINE static void read_shared_operands(unsigned w, const Product& p, Elements& to) {
    if (p.left) read_left(w, p.left, to);
    read_right(p.right, p.transposed, to);
}

// The four warps of a group begin the same products, one warp after the other.
EMULATOR_MACHINE static void check_warpgroup(unsigned w, const ProductQueue& queue, const Begun& now) {
    Begun& known = warpgroup_products[w / 4][queue.begun_ever % kMaxBegun];
    bool same_product = known.block == now.block && known.number == now.number;
    if (same_product && (known.left != now.left || known.right != now.right || known.add != now.add))
        refuse(kAssert, kWgmma, "of other operands than those of another warp of the warpgroup");
    if (known.block != now.block || known.number < now.number) known = now;
}

EMULATOR_MACHINE static void check_begin(const ProductQueue& queue, const LaneOperands* lanes) {
    if (!queue.may_begin) refuse(kAssert, kWgmma, "without wgmma_begin since the start or the last wait");
    if (queue.begun == kMaxProducts)
        refuse(kAssert, kWgmma, "with 64 products of the warp on their way: wait for some");
    for (int lane = 1; lane < 32; lane++)
        if (lanes[lane].left != lanes[0].left || lanes[lane].right != lanes[0].right)
            refuse(kAssert, kWgmma, "of other operands than those of another lane of the warp");
}

EMULATOR_MACHINE static void begin_product(unsigned w, bool transposed, AddProduct add) {
    ProductQueue& queue = product_queue(w);
    const LaneOperands* lanes = lane_operands[w];
    check_begin(queue, lanes);
    Product& p = queue.products[queue.begun];
    p.add = add, p.transposed = transposed, p.left = lanes[0].left, p.right = lanes[0].right;
    check_warpgroup(w, queue, {queue.block, queue.begun_ever, p.left, p.right, add});
    read_shared_operands(w, p, p.first);
    for (int lane = 0; lane < 32 && !p.left; lane++) take_left(lane, lanes[lane].registers, p.first);
    p.sums = sums_of(queue.sums, lanes);
    p.sums->products++, queue.begun++, queue.begun_ever++;
}

// ---- commit and wait

EMULATOR_MACHINE static void finish_product(unsigned w, const Product& p) {
    Elements now = p.first;
    read_shared_operands(w, p, now);
    if (memcmp(now.left, p.first.left, sizeof now.left))
        refuse(kAssert, kWgmma, "whose left operand changed before the wait that covers it");
    if (memcmp(now.right, p.first.right, sizeof now.right))
        refuse(kAssert, kWgmma, "whose right operand changed before the wait that covers it");
    p.add(now, p.sums->value);
    if (--p.sums->products == 0) give_to_lanes(*p.sums);
}

EMULATOR_MACHINE static void finish_groups(unsigned w, unsigned groups) {  // the oldest ones
    ProductQueue& queue = product_queue(w);
    unsigned count = queue.group_end[groups - 1];
    for (unsigned i = 0; i < count; i++) finish_product(w, queue.products[i]);
    queue.begun -= count, queue.num_groups -= groups;
    memmove(queue.products, queue.products + count, queue.begun * sizeof(Product));
    for (unsigned i = 0; i < queue.num_groups; i++) queue.group_end[i] = queue.group_end[i + groups] - count;
}

EMULATOR_MACHINE static void commit_group(unsigned w) {
    ProductQueue& queue = product_queue(w);
    if (queue.num_groups == kMaxProducts) finish_groups(w, 1);  // an empty group more than fits
    queue.group_end[queue.num_groups++] = queue.begun;
}

EMULATOR_MACHINE static void wait_for_groups(unsigned w, unsigned pending) {
    ProductQueue& queue = product_queue(w);
    queue.may_begin = false;
    if (queue.num_groups > pending) finish_groups(w, queue.num_groups - pending);
}

// ---- the parts that belong to the kernel

template <class T, bool TRANSPOSED>
static inline void product(float* sums, const unsigned* registers, uint64_t left, uint64_t right) {
    if (num_threads % 128) refuse(kAssert, kWgmma, "in a block that is not made of warpgroups of 128 threads");
    check_operand(right, TRANSPOSED ? 16 : 64, !TRANSPOSED);
    if (!registers) check_operand(left, 64, true);
    for_each_chunk(!registers, left, right, TRANSPOSED, [](unsigned address) {
        check_announced(address);
        check_reads(chunk_pointer(address), 16);
    });
    lane_operands[current >> 5][current & 31] = {sums, registers, left, right};
    collective(kWgmma, [](unsigned w) { begin_product(w, TRANSPOSED, add_product<T, TRANSPOSED>); });
}

// Check mode hears once more that the operands are read, since only now they have been.
static inline void check_reads_until_now(unsigned pending) {
    check_pause(true);
    const ProductQueue& queue = product_queue(current >> 5);
    unsigned count = queue.num_groups > pending ? queue.group_end[queue.num_groups - pending - 1] : 0;
    for (unsigned i = 0; i < count; i++) {
        const Product& p = queue.products[i];
        for_each_chunk(p.left != 0, p.left, p.right, p.transposed, [](unsigned address) {
            check_pause(false);
            check_reads(chunk_pointer(address), 16);
            check_pause(true);
        });
    }
    check_pause(false);
}

}  // namespace emulator

static inline void wgmma_begin() {
    emulator::collective("wgmma.fence", [](unsigned w) { emulator::product_queue(w).may_begin = true; });
}

static inline void wgmma_commit() { emulator::collective("wgmma.commit_group", emulator::commit_group); }

template <int PENDING>
static inline void wgmma_wait() {
#ifdef EMULATOR_CHECK
    emulator::check_reads_until_now(PENDING);
#endif
    emulator::collective("wgmma.wait_group", [](unsigned w) { emulator::wait_for_groups(w, PENDING); });
}

static inline void shared_writes_for_wgmma() { emulator::announced[emulator::current]++; }

template <class T, bool TRANSPOSED>
static inline void wgmma_64x64x16(float (&d)[32], const unsigned (&a)[4], unsigned long long b) {
    emulator::product<T, TRANSPOSED>(d, a, 0, b);
}

template <class T, bool TRANSPOSED>
static inline void wgmma_64x64x16(float (&d)[32], unsigned long long a, unsigned long long b) {
    emulator::product<T, TRANSPOSED>(d, nullptr, a, b);
}

#undef inline
