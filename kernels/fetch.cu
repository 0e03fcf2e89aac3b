// kernels/fetch.cu: a few words from the device to the host, beside the stream's other kernels.
//
// to[i] = from[i], where `to` is page-locked memory of the host, which a kernel reaches too. A copy by the driver runs on
// an engine of its own, and to go there and back costs the stream more than a launch, however few the words are.
// One block of any size; thread i copies words i, i + blockDim.x, ...
// Bytes: 4 * count, over the bus: nothing beside the launch. On an H200 a decode step of the engine that fetches 1 or 8
// ids so is 4 to 5 us longer than one that fetches none, and 11 to 12 us with the driver's copy.
extern "C" __global__ void fetch(const unsigned* from,  // (count,)
                                 unsigned* to,          // (count,), on the host
                                 int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}
