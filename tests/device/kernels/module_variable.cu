// tests/device/kernels/module_variable.cu
// A variable of the module, which all blocks and all launches share.
__device__ int launches;
extern "C" __global__ void count_blocks(int* out) {
    int before = atomicAdd(&launches, 1);
    out[blockIdx.x] = before;
}
