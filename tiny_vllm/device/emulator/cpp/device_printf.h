// printf in a kernel: into a buffer, which Python prints when the launch is over (as CUDA does at a synchronisation).
#pragma once

namespace emulator {

constexpr size_t kPrintBytes = 1 << 20;
static char print_buffer[kPrintBytes];

template <class... Args>
static int print(const char* format, Args... args) {
    size_t used = launch->printed_bytes;
    int wanted = snprintf(print_buffer + used, kPrintBytes - used, format, args...);
    launch->printed = print_buffer;
    if (wanted > 0 && used + (size_t)wanted < kPrintBytes) launch->printed_bytes = used + (size_t)wanted;
    return (int)sizeof...(args);
}

}  // namespace emulator

#define printf(...) emulator::print(__VA_ARGS__)
