// CUDA C on a CPU: the header that stands in front of every kernel.
//
// The kernel's own text is compiled unchanged by the host's C++ compiler. Macros give CUDA's keywords a meaning, plain
// variables are threadIdx and its kin, and a thread that has to wait (at a barrier, for its warp) is a fiber: a stack
// of its own that the scheduler leaves and comes back to. One loaded copy of the compiled kernel is one multiprocessor:
// it runs one block at a time, so all its state is plain static data. Several copies run blocks side by side.
#pragma once

#include "keywords.h"
#include "vector_types.h"
#include "check_hooks.h"
#ifdef EMULATOR_CHECK  // what a kernel calls becomes a part of it, so that its accesses belong to the reader's lines
#define inline inline __attribute__((always_inline))
#endif
// The machine, from the bottom up.
#include "context_switch.h"
#include "launch.h"
#include "scheduler.h"
#include "block.h"
// What a kernel may call.
#include "barrier.h"
#include "warp.h"
#include "atomics.h"
#include "bits.h"
#include "device_math.h"
#include "device_printf.h"
// What Python calls.
#include "entry.h"
#undef inline
#include "check_view.h"

// CUDA's compiler takes `__shared__ alignas(16) float x[4];`, C++ only with the alignment in front.
#define alignas(bytes) __attribute__((aligned(bytes)))
