// Atomic operations on global and shared memory. They are real ones: blocks run on several OS threads.
#pragma once

namespace emulator {

template <class T>
using Word = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;

// *address = f(*address), and the old value.
template <class T, class F>
static inline T read_modify_write(T* address, F f) {
    static_assert(sizeof(T) == sizeof(Word<T>), "an atomic operation is on 2, 4 or 8 bytes");
    Word<T>* word = (Word<T>*)address;
    Word<T> old_bits = __atomic_load_n(word, __ATOMIC_RELAXED), new_bits;
    T old_value;
    do {
        memcpy(&old_value, &old_bits, sizeof(T));
        T new_value = f(old_value);
        memcpy(&new_bits, &new_value, sizeof(T));
    } while (!__atomic_compare_exchange_n(word, &old_bits, new_bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old_value;
}

}  // namespace emulator

#define EMULATOR_ATOMIC(NAME, EXPRESSION)                                                        \
    template <class T>                                                                           \
    static inline T NAME(T* address, std::common_type_t<T> value) {                              \
        return emulator::read_modify_write(address, [value](T old) -> T { return EXPRESSION; }); \
    }

EMULATOR_ATOMIC(atomicAdd, old + value)
EMULATOR_ATOMIC(atomicSub, old - value)
EMULATOR_ATOMIC(atomicMax, old > value ? old : value)
EMULATOR_ATOMIC(atomicMin, old < value ? old : value)
EMULATOR_ATOMIC(atomicExch, value)
EMULATOR_ATOMIC(atomicAnd, old& value)
EMULATOR_ATOMIC(atomicOr, old | value)
EMULATOR_ATOMIC(atomicXor, old ^ value)
EMULATOR_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
EMULATOR_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)

template <class T>
static inline T atomicCAS(T* address, std::common_type_t<T> compare, std::common_type_t<T> value) {
    return emulator::read_modify_write(address, [=](T old) -> T { return old == compare ? value : old; });
}
