// chapters/ch00_hello_gpu/hello.cu: the worked solution of chapter 00. The engine runs none of it.
//
// Two first kernels. A kernel is the program of one thread; a launch runs it in grid x block threads at once, and each
// thread finds out from blockIdx, blockDim and threadIdx which of them it is.
//
// Both: grid ceil(n / blockDim.x) blocks, any block. Thread i of the grid owns element i; the last block has threads
// to spare, and they do nothing.

// Which thread am I? Thread i writes the number of its block and its own number in that block.
extern "C" __global__ void which_thread(int* block,   // (n,) out
                                        int* thread,  // (n,) out
                                        int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        block[i] = blockIdx.x;
        thread[i] = threadIdx.x;
    }
}

// sum[i] = a[i] + b[i]
extern "C" __global__ void vector_add(const float* a,  // (n,)
                                      const float* b,  // (n,)
                                      float* sum,      // (n,) out
                                      int n) {
    // EXERCISE-BEGIN 0.2 (about 2 lines): find out which element is yours, and add it if there is such an element
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = a[i] + b[i];
    // EXERCISE-END 0.2
}
