// Runs a launch so that nothing in it takes the process down: a fault or a deadline ends the launch, not Python.
//
// guard_run marks a place to come back to (sigsetjmp), then calls the kernel. A fault, the kernel's own __trap, or the
// watchdog's signal jumps back there, from whatever stack the kernel stands on. The kernel's static data is left half
// way; the next launch starts by setting it back. Outside a launch the handlers pass on to those that were there before.
// Tested on x86-64 Linux; written for macOS and AArch64 too, and not run there.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <memory>

#include "launch_record.h"

using emulator::Launch;

namespace {

constexpr size_t kSignalStackBytes = 64 * 1024;
constexpr int kDeadlineSignal = SIGURG;  // ignored by default, so a late one does no harm
constexpr int kSignals[] = {kDeadlineSignal, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int kPrinted = 0x100;  // in guard_run's result

struct sigaction previous[NSIG];
volatile uint64_t expired;  // the token of the launch whose deadline has passed

// One OS thread: where to jump back to, and the stacks of the CUDA threads that it runs.
struct Guard {
    sigjmp_buf home;
    volatile bool active = false;
    uint64_t token = 0;
    Launch* launch = nullptr;
    char* stacks = nullptr;
    char* signal_stack = nullptr;

    Guard();
    ~Guard();
};

#ifdef __linux__
// A handler must not allocate: this model needs no call on first use.
__attribute__((tls_model("initial-exec")))
#endif
thread_local Guard* guard = nullptr;
thread_local std::unique_ptr<Guard> owner;

Guard::Guard() {
    constexpr size_t bytes = emulator::kMaxThreads * emulator::kStackBytes;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (memory == MAP_FAILED) return;
    stacks = (char*)memory;
#ifdef __linux__
    madvise(stacks, bytes, MADV_HUGEPAGE);  // 1,024 stacks on 32 large pages
#endif
    stack_t old_stack;
    sigaltstack(nullptr, &old_stack);
    if (!(old_stack.ss_flags & SS_DISABLE)) return;
    // A fault may be a stack overflow: the handler needs a stack of its own.
    signal_stack = (char*)malloc(kSignalStackBytes);
    stack_t new_stack = {};
    new_stack.ss_sp = signal_stack;
    new_stack.ss_size = kSignalStackBytes;
    sigaltstack(&new_stack, nullptr);
}

Guard::~Guard() {
    guard = nullptr;
    if (stacks) munmap(stacks, emulator::kMaxThreads * emulator::kStackBytes);
    if (!signal_stack) return;
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
    free(signal_stack);
}

[[noreturn]] void stop(int reason) {
    guard->active = false;
    siglongjmp(guard->home, reason);
}

int reason_of(int signal_number) {
    if (signal_number == SIGFPE) return emulator::kDivision;
    if (signal_number == SIGILL) return emulator::kIllegalInstruction;
    return emulator::kIllegalAddress;
}

void pass_on(int signal_number, siginfo_t* info, void* context) {
    const struct sigaction& before = previous[signal_number];
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(signal_number, info, context);
    } else if (before.sa_handler == SIG_DFL) {
        if (signal_number == kDeadlineSignal) return;
        signal(signal_number, SIG_DFL);  // the faulting instruction runs again and ends the process
    } else if (before.sa_handler != SIG_IGN) {
        before.sa_handler(signal_number);
    }
}

// The program counter that the deadline's signal came upon; 0 where this system's layout is not known here.
uint64_t interrupted_at(void* context) {
#if defined(__linux__) && defined(__x86_64__)
    return (uint64_t)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__linux__) && defined(__aarch64__)
    return (uint64_t)((ucontext_t*)context)->uc_mcontext.pc;
#else
    (void)context;
    return 0;
#endif
}

void on_signal(int signal_number, siginfo_t* info, void* context) {
    bool ours = guard && guard->active && (signal_number != kDeadlineSignal || guard->token == expired);
    if (!ours) return pass_on(signal_number, info, context);
    bool late = signal_number == kDeadlineSignal;
    guard->launch->fault_address = late ? interrupted_at(context) : (uint64_t)info->si_addr;
    stop(signal_number == kDeadlineSignal ? (int)emulator::kTimeout : reason_of(signal_number));
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Once a process. SA_NODEFER: the jump out of the handler leaves the signal mask as it was.
EXPORT void guard_install() {
    static bool installed = false;
    if (installed) return;
    installed = true;
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int signal_number : kSignals) sigaction(signal_number, &action, &previous[signal_number]);
}

// Runs one launch to its end; the result is why it ended, plus kPrinted when the kernel printed something.
EXPORT int guard_run(void (*kernel)(Launch*), Launch* launch, uint64_t token) {
    if (!guard) {
        owner = std::make_unique<Guard>();
        guard = owner.get();
    }
    if (!guard->stacks) return -1;
    launch->stacks = guard->stacks;
    launch->stop = stop;
    launch->printed_bytes = 0;
    guard->launch = launch;
    guard->token = token;
    int reason = sigsetjmp(guard->home, 0);
    if (reason == 0) {
        guard->active = true;
        kernel(launch);
        guard->active = false;
    }
    if (reason != 0) __atomic_store_n(launch->next_block, launch->num_blocks, __ATOMIC_RELAXED);  // the others stop too
    return reason | (launch->printed_bytes ? kPrinted : 0);
}

// The watchdog's call: end the launch with this token, which runs on that OS thread, if it still does.
EXPORT void guard_expire(unsigned long thread, uint64_t token) {
    expired = token;
    pthread_kill((pthread_t)thread, kDeadlineSignal);
}
