// Leave one stack and go on with another: the whole of what a fiber needs from the CPU.
//
// emulator_switch(&from, to) pushes the registers that a called function must preserve, stores the stack pointer in
// `from`, takes `to` as the stack pointer and pops the same registers there. It returns on the other stack, to whoever
// left that one. Some 14 ns, where the C library's swapcontext takes 450 (it also saves the signal mask).
// The AArch64 half is tested under QEMU (tests/device/test_aarch64.py), not on a chip.
#pragma once

namespace emulator {

extern "C" void emulator_switch(void** from, void* to) asm("emulator_switch_");

#if defined(__x86_64__)

asm(".text\n.p2align 4\n"
    "emulator_switch_:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\n"
    "movq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
    "ret\n");
constexpr int kSavedWords = 7;  // six registers, then the address to return to
constexpr int kReturnAddressWord = 6;

#elif defined(__aarch64__)

asm(".text\n.p2align 4\n"
    "emulator_switch_:\n"
    "sub sp,sp,#160\n"
    "stp x19,x20,[sp,#0]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
    "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\n"
    "mov sp,x1\n"
    "ldp x19,x20,[sp,#0]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
    "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
    "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#160\n"
    "ret\n");
constexpr int kSavedWords = 20;
constexpr int kReturnAddressWord = 11;  // x30

#else
#error "the emulator runs on x86-64 and AArch64; this CPU needs its own emulator_switch"
#endif

// The stack pointer with which `start` begins on a fresh stack that ends at `top`.
static inline void* fresh_stack(char* top, void (*start)()) {
    uintptr_t aligned = (uintptr_t)top & ~(uintptr_t)15;
    void** sp = (void**)aligned - kSavedWords - 1;
    memset(sp, 0, (kSavedWords + 1) * sizeof(void*));
    sp[kReturnAddressWord] = (void*)start;
    return sp;
}

}  // namespace emulator
