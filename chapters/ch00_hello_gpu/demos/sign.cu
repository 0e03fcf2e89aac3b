// chapters/ch00_hello_gpu/demos/sign.cu: a picture of chapter 00: each thread signs one element with its block.
//
// Any grid. A thread finds its element the long way: it counts the threads of all blocks before its own.
extern "C" __global__ void sign(int* owner,  // (n,)
                                int n) {
    int passed = 0;
    for (int before = 0; before < blockIdx.x; before++) passed += blockDim.x;
    int left = n - passed;
    if (left > 0 && threadIdx.x < left) owner[passed + threadIdx.x] = blockIdx.x;
}
