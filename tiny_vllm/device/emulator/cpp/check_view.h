// threadIdx and its kin as a checked kernel's text sees them: constants, as they are for one thread, which the compiler
// does not instrument. The machine's own names for them are in vector_types.h.
#pragma once

#ifdef EMULATOR_CHECK

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

struct emulator_size {
    unsigned x, y, z;
    operator dim3() const { return dim3(x, y, z); }
};
#define EMULATOR_VIEW(T, NAME) extern const T NAME asm("emulator_" #NAME) __attribute__((visibility("hidden")));
EMULATOR_VIEW(uint3, threadIdx)
EMULATOR_VIEW(uint3, blockIdx)
EMULATOR_VIEW(emulator_size, blockDim)
EMULATOR_VIEW(emulator_size, gridDim)

#endif
