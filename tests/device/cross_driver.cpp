// tests/device/cross_driver.cpp: runs launches that come over stdin, where no Python of this CPU is at hand.
//
// Linked with a translation unit of kernels and with guard.cpp for another CPU, and run under its emulator
// (test_aarch64.py, which writes and reads the same fields in the same order).
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "launch_record.h"

using emulator::Launch;

extern "C" void guard_install();
extern "C" int guard_run(void (*kernel)(Launch*), Launch* launch, uint64_t token);
extern "C" void guard_expire(unsigned long thread, uint64_t token);
extern "C" void (*cross_kernels[])(Launch*);  // of the unit: with fibers and without, in turn

static void read_all(void* to, size_t bytes) {
    if (fread(to, 1, bytes, stdin) != bytes) exit(3);
}

template <class T>
static T read_one() {
    T value;
    read_all(&value, sizeof value);
    return value;
}

int main() {
    guard_install();
    uint32_t launches = read_one<uint32_t>();
    for (uint64_t token = 1; token <= launches; token++) {
        Launch launch = {};
        uint32_t kernel = read_one<uint32_t>(), timeout_ms = read_one<uint32_t>();
        read_all(launch.grid, sizeof launch.grid);
        read_all(launch.block, sizeof launch.block);
        launch.num_blocks = (uint64_t)launch.grid[0] * launch.grid[1] * launch.grid[2];
        launch.dynamic_shared_bytes = read_one<uint32_t>();
        uint32_t count = read_one<uint32_t>();
        std::vector<std::vector<char>> memory(count);  // an array's bytes, or a scalar's
        std::vector<void*> pointers(count), args(count);
        for (uint32_t i = 0; i < count; i++) {
            bool is_array = read_one<uint32_t>();
            memory[i].resize(read_one<uint32_t>());
            read_all(memory[i].data(), memory[i].size());
            pointers[i] = memory[i].data();
            args[i] = is_array ? (void*)&pointers[i] : pointers[i];
        }
        uint64_t next_block = 0;
        launch.args = args.data();
        launch.next_block = &next_block;
        if (timeout_ms) {
            unsigned long self = (unsigned long)pthread_self();
            std::thread([=] { usleep(timeout_ms * 1000), guard_expire(self, token); }).detach();
        }
        int32_t result = guard_run(cross_kernels[kernel], &launch, token);
        fwrite(&result, sizeof result, 1, stdout);
        fwrite(launch.error, sizeof launch.error, 1, stdout);
        for (auto& bytes : memory) fwrite(bytes.data(), 1, bytes.size(), stdout);
    }
}
