// kernels/read_bandwidth.cu: what `tiny-vllm bench` measures the machine with; the engine does not run it.
//
// Reads all of x and writes nothing: the ceiling of a kernel that streams weights.
// Any grid, any block; thread i folds the 16 bytes at i, i + threads, ..., eight loads in flight at a time. A fold that
// equals NEVER would be written, so that the compiler can leave no load out; x is to be zeros, whose fold it is not.
// Bytes: 16 * count read. It is the floor of all others: 4.5 TB/s measured on an H200, where a copy reaches 4.22.
constexpr unsigned NEVER = 0x9E3779B9u;
constexpr int IN_FLIGHT = 8;

__device__ __forceinline__ unsigned fold_quad(const uint4& v) { return v.x ^ v.y ^ v.z ^ v.w; }

extern "C" __global__ void read_bandwidth(const unsigned* x,  // (4 * count,), 16-byte aligned
                                          unsigned* out,      // (1,)
                                          long long count) {
    const uint4* quads = reinterpret_cast<const uint4*>(x);
    const long long threads = (long long)gridDim.x * blockDim.x;
    long long i = threadIdx.x + (long long)blockIdx.x * blockDim.x;
    unsigned fold = 0;
    for (; i + (IN_FLIGHT - 1) * threads < count; i += IN_FLIGHT * threads) {
        uint4 loaded[IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++) loaded[k] = quads[i + k * threads];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++) fold ^= fold_quad(loaded[k]);
    }
    for (; i < count; i += threads) fold ^= fold_quad(quads[i]);
    if (fold == NEVER) out[0] = fold;
}
