// Blocks one after another, each on a scheduler set back to its start.
#pragma once

namespace emulator {

static void reset_barrier();
static void (*block_ends)();  // what an instruction's twin asks of a block whose threads have returned; null: nothing

EMULATOR_MACHINE static void run_block() {
    num_alive = num_threads;
    reset_barrier();
    poison_shared();
    for (unsigned w = 0; w < num_warps; w++) {
        unsigned left = num_threads - w * kWarpSize;
        warps[w].ready = left >= kWarpSize ? ~0u : (1u << left) - 1;
        warps[w].exited = ~warps[w].ready;
        warps[w].arrived = 0;
    }
    memset(states, kNew, num_threads);
    num_free_stacks = 0;
    for (int i = (int)num_threads - 1; i >= 0; i--) free_stacks[num_free_stacks++] = i;
    check_block_begins(num_threads);
    switch_to(&main_sp, reverse_order ? num_threads - 1 : 0);
    if (block_ends) block_ends();
    check_block_ends();
}

static void run(Launch* l, void (*kernel)(void**)) {
    begin(l, true);
    kernel_thread = kernel;
    num_threads = blockDim.x * blockDim.y * blockDim.z;
    num_warps = (num_threads + kWarpSize - 1) / kWarpSize;
    for (unsigned t = 0; t < num_threads; t++)
        threads[t].index = uint3{t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    while (take_block()) run_block();
}

}  // namespace emulator
