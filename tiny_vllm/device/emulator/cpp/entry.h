// What Python calls: for each kernel a launch with fibers, a launch without, and its parameters' types.
//
// Every name here must survive a kernel's own #defines, which come before EMULATOR_KERNEL: hence no one-letter names.
#pragma once

namespace emulator {

template <class Parameter>
static inline std::remove_cv_t<Parameter>& argument(void* address) {
    return *(std::remove_cv_t<Parameter>*)address;
}

template <class... Parameters, size_t... I>
static inline __attribute__((always_inline)) void call(void (*kernel)(Parameters...), void** args,
                                                       std::index_sequence<I...>) {
    kernel(argument<Parameters>(args[I])...);
}

// A kernel that never waits needs no scheduler: three loops.
template <auto Kernel, class... Parameters>
static inline __attribute__((always_inline)) void loop_over_threads(std::remove_cv_t<Parameters>... args) {
    for (threadIdx.z = 0; threadIdx.z < blockDim.z; threadIdx.z++)
        for (threadIdx.y = 0; threadIdx.y < blockDim.y; threadIdx.y++)
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) Kernel(args...);
}

template <class T, class = void>
constexpr char kCode = 0;
template <class T>
constexpr char kCode<T, std::void_t<decltype(T::emulator_code)>> = T::emulator_code;

// A parameter's type in Python's struct notation ("f", "i", "Q"; "16s" for a struct of 16 bytes), "E" for bfloat16,
// "*" before the pointee's for a pointer.
template <class T>
static void describe(char*& out) {
    using U = std::remove_cv_t<T>;
    if constexpr (std::is_pointer_v<U>) *out++ = '*';
    else if constexpr (kCode<U> != 0) *out++ = kCode<U>;
    else if constexpr (std::is_same_v<U, bool>) *out++ = '?';
    else if constexpr (std::is_floating_point_v<U>) *out++ = sizeof(U) == 4 ? 'f' : 'd';
    else if constexpr (std::is_integral_v<U> || std::is_enum_v<U>) {
        const char* codes = std::is_unsigned_v<U> ? "BHIQ" : "bhiq";
        *out++ = codes[__builtin_ctz(sizeof(U))];
    } else out += sprintf(out, "%zus", sizeof(U));
    if constexpr (std::is_pointer_v<U>) {
        using Pointee = std::remove_cv_t<std::remove_pointer_t<U>>;
        if constexpr (std::is_void_v<Pointee>) *out++ = 'v';
        else return describe<Pointee>(out);
    }
    *out++ = ',';
}

template <auto Kernel>
struct Entry;

template <class... Parameters, void (*Kernel)(Parameters...)>
struct Entry<Kernel> {
    using Indices = std::index_sequence_for<Parameters...>;

    static void thread(void** args) { call(Kernel, args, Indices()); }

    static void run_fibers(Launch* l) { run(l, thread); }

    template <size_t... I>
    static void run_blocks(void** args, std::index_sequence<I...>) {
        while (take_block()) {
            poison_shared();
            loop_over_threads<Kernel, Parameters...>(argument<Parameters>(args[I])...);
        }
    }

    static void run_plain(Launch* l) {
        begin(l, false);
        run_blocks(l->args, Indices());
    }

    static const char* signature() {
        static char text[16 * (sizeof...(Parameters) + 1)];
        char* out = text;
        (describe<Parameters>(out), ...);
        *out = 0;
        return text;
    }
};

}  // namespace emulator

#define EMULATOR_KERNEL(INDEX, ...)                                                   \
    EMULATOR_EXPORT void emulator_fibers_##INDEX(emulator::Launch* emulator_launch) { \
        emulator::Entry<&__VA_ARGS__>::run_fibers(emulator_launch);                   \
    }                                                                                 \
    EMULATOR_EXPORT void emulator_plain_##INDEX(emulator::Launch* emulator_launch) {  \
        emulator::Entry<&__VA_ARGS__>::run_plain(emulator_launch);                    \
    }                                                                                 \
    EMULATOR_EXPORT const char* emulator_signature_##INDEX() { return emulator::Entry<&__VA_ARGS__>::signature(); }

#define EMULATOR_MODULE()                                                                       \
    EMULATOR_GAP                                                                                \
    EMULATOR_EXPORT void emulator_set_order(int reverse) { emulator::reverse_order = reverse; } \
    EMULATOR_EXPORT unsigned long long emulator_static_shared_bytes() {                         \
        return (unsigned long long)(emulator::shared_end - emulator::shared_begin);             \
    }
