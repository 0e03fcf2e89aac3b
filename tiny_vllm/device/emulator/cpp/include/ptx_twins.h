// The twins of kernels/ptx.cuh: each instruction's effect in plain C++. ptx.cuh includes this file in their place.
//
// The warp-wide ones are collectives: a lane lays its operands down and waits; the last lane to come does the work of
// all, and each goes on with its part. cp.async is as late as a GPU may be: the destination holds NaN from the copy's
// start, and the bytes land at the wait that covers them, so that a missing commit or wait shows in the results.
#pragma once

#ifdef EMULATOR_CHECK  // as in cuda_emulator.h
#define inline inline __attribute__((always_inline))
#endif

namespace emulator {

// ---- shared memory as 32-bit addresses: dynamic from 0 on, static up to kStaticEnd

constexpr unsigned kStaticEnd = 1u << 20;

static inline unsigned static_address() {
    return kStaticEnd - (unsigned)(shared_end - shared_begin + 1023) / 1024 * 1024;
}

static inline unsigned address_of(const void* p) {
    const char* at = (const char*)p;
    bool dynamic = at >= dynamic_shared && at < dynamic_shared + kMaxDynamicShared;
    return (unsigned)(dynamic ? at - dynamic_shared : at - shared_begin + static_address());
}

static inline char* shared_pointer(unsigned address) {
    return address < static_address() ? dynamic_shared + address : shared_begin + (address - static_address());
}

[[noreturn]] static void refuse(Reason reason, const char* instruction, const char* what) {
    snprintf(launch->error, sizeof launch->error, "%s %s, block (%u, %u, %u), thread (%u, %u, %u)", instruction, what,
             blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    stop(reason);
}

static inline void check_aligned(const char* instruction, uintptr_t address) {
    if (address % 16) refuse(kMisaligned, instruction, "at an address that is no multiple of 16");
}

// ---- cp.async: what each thread has begun to copy

constexpr unsigned kMaxCopies = 128;  // of one thread, on their way at one time

struct Copy {
    char* to;
    const void* from;  // null: zeros
};

// The last copy to 16 bytes of shared memory, and how often its thread had announced its writes to wgmma by then.
struct Landing {
    uint64_t block;
    unsigned thread, announced;
};

constexpr unsigned kMaxLandings = (1u << 18) / 16;
static Landing landings[kMaxLandings];  // by the lower 18 bits of the address
static unsigned announced[kMaxThreads];

struct CopyQueue {
    uint64_t block;  // whose copies these are; another block finds the queue empty
    unsigned begun, num_groups;
    unsigned group_end[kMaxCopies];
    Copy copies[kMaxCopies];

    void land(unsigned groups) {  // the oldest ones
        unsigned count = groups ? group_end[groups - 1] : 0;
        for (unsigned i = 0; i < count; i++) {
            check_pause(true);
            if (copies[i].from) memcpy(copies[i].to, copies[i].from, 16);
            else memset(copies[i].to, 0, 16);
            landings[address_of(copies[i].to) / 16 % kMaxLandings] = {blocks_begun, current, announced[current]};
            check_pause(false);
            check_copy_lands(copies[i].to, 16);
        }
        begun -= count, num_groups -= groups;
        memmove(copies, copies + count, begun * sizeof(Copy));
        for (unsigned i = 0; i < num_groups; i++) group_end[i] = group_end[i + groups] - count;
    }
};

static CopyQueue copy_queues[kMaxThreads];

static inline CopyQueue& copy_queue() {
    CopyQueue& queue = copy_queues[(threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x];
    if (queue.block != blocks_begun) {
        queue.block = blocks_begun;
        queue.begun = queue.num_groups = 0;
    }
    return queue;
}

// ---- ldmatrix and mma: what the lanes of each warp have laid down, and what each takes up

struct LaneWords {
    unsigned word[6];
};

static LaneWords operands[kMaxWarps][kWarpSize];
static float sums[kMaxWarps][kWarpSize][4];
static unsigned words[kMaxWarps][kWarpSize][4];
static unsigned times_met[kMaxWarps];

// All 32 lanes meet; the last to come calls work(warp) for all.
template <class F>
static inline void collective(const char* instruction, F work) {
    if (!with_fibers) misjudged();
    unsigned w = current >> 5, before = times_met[w];
    if ((warps[w].arrived | lane_bit(current)) == ~0u) {
        check_pause(true);
        work(w), times_met[w]++;
        check_pause(false);
    }
    exchange(~0u, 0, kVote);  // lanes that returned are not waited for
    if (times_met[w] == before) refuse(kAssert, instruction, "in a warp of which some lanes have returned");
}

static inline void load_matrices(unsigned (&r)[4], unsigned address, bool transposed) {
    check_aligned("ldmatrix", address);
    unsigned lane = current & 31, warp = current >> 5;
    operands[warp][lane].word[0] = address;
    check_reads(shared_pointer(address), 16);
    collective("ldmatrix", [transposed](unsigned w) {
        uint16_t rows[32][8];
        for (int i = 0; i < 32; i++) memcpy(rows[i], shared_pointer(operands[w][i].word[0]), 16);
        for (int lane = 0; lane < 32; lane++)
            for (int m = 0; m < 4; m++) {
                int g = lane / 4, t = lane % 4;
                unsigned low = transposed ? rows[8 * m + 2 * t][g] : rows[8 * m + g][2 * t];
                unsigned high = transposed ? rows[8 * m + 2 * t + 1][g] : rows[8 * m + g][2 * t + 1];
                words[w][lane][m] = low | high << 16;
            }
    });
    memcpy(r, words[warp][lane], sizeof r);
}

// A pair of 16-bit elements into two floats.
template <class T>
static inline void unpack(float* to, unsigned pair) {
    to[0] = (float)T::from_bits((uint16_t)pair);
    to[1] = (float)T::from_bits((uint16_t)(pair >> 16));
}

// The warp's product, by its definition: ptx.cuh says which lane holds what.
template <class T>
static void multiply(unsigned w) {
    float a[16][16], b[8][16];  // b by columns
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, t = lane % 4;
        const unsigned* word = operands[w][lane].word;
        for (int i = 0; i < 4; i++) unpack<T>(&a[g + i % 2 * 8][2 * t + i / 2 * 8], word[i]);
        for (int i = 0; i < 2; i++) unpack<T>(&b[g][2 * t + i * 8], word[4 + i]);
    }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            float sum = sums[w][lane][i];
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[column][k];
            sums[w][lane][i] = sum;
        }
}

}  // namespace emulator

static inline unsigned shared_address(const void* p) { return emulator::address_of(p); }

static inline void cp_async_16(unsigned to, const void* from, bool valid) {
    emulator::check_aligned("cp.async", to);
    if (valid) emulator::check_aligned("cp.async", (uintptr_t)from);
    emulator::CopyQueue& queue = emulator::copy_queue();
    if (queue.begun == emulator::kMaxCopies)
        emulator::refuse(emulator::kAssert, "cp.async", "with 128 copies of the thread on their way: wait for some");
    char* place = emulator::shared_pointer(to);
    if (valid) emulator::check_reads(from, 16);
    emulator::check_pause(true);
    memset(place, 0xFF, 16);
    emulator::check_pause(false);
    emulator::check_copy_begins(place, 16);
    queue.copies[queue.begun++] = {place, valid ? from : nullptr};
}

static inline void cp_async_16_of_128(unsigned to, const void* from) { cp_async_16(to, from, true); }

static inline void cp_async_commit() {
    emulator::CopyQueue& queue = emulator::copy_queue();
    if (queue.num_groups == emulator::kMaxCopies) queue.land(1);  // an empty group more than fits: the oldest may land
    queue.group_end[queue.num_groups++] = queue.begun;
}

template <int PENDING>
static inline void cp_async_wait() {
    emulator::CopyQueue& queue = emulator::copy_queue();
    if (queue.num_groups > PENDING) queue.land(queue.num_groups - PENDING);
}

static inline void ldmatrix_x4(unsigned (&r)[4], unsigned address) { emulator::load_matrices(r, address, false); }
static inline void ldmatrix_x4_transposed(unsigned (&r)[4], unsigned address) {
    emulator::load_matrices(r, address, true);
}

template <class T>
static inline void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    unsigned lane = emulator::current & 31, warp = emulator::current >> 5;
    emulator::operands[warp][lane] = {{a[0], a[1], a[2], a[3], b0, b1}};
    memcpy(emulator::sums[warp][lane], d, sizeof d);
    emulator::collective("mma.sync", emulator::multiply<T>);
    memcpy(d, emulator::sums[warp][lane], sizeof d);
}

static inline uint4 load_once(const void* p) {
    emulator::check_aligned("a load of 16 bytes", (uintptr_t)p);
    return *(const uint4*)p;
}

static inline void prefetch_l2(const void*) {}
static inline void launch_next_kernel() {}
static inline void wait_for_previous_kernel() {}  // kernels run one after the other

#undef inline
