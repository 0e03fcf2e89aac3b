// Stands in for CUDA's <cuda_runtime.h>: what NVRTC would take from it is built into the emulator's own header.
#pragma once
