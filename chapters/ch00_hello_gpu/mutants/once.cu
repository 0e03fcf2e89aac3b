// chapters/ch00_hello_gpu/mutants/once.cu: wrong because: one element a thread |
// caught by: tails/1000 t64 b3 | looks right on: a grid with a thread for each element | exercise: 0.4
//
// Three first kernels. A kernel is the program of one thread; a launch runs it in a grid of blocks, blockDim.x threads a
// block, all at once. Which of them a thread is, it finds out from blockIdx (its block), blockDim and threadIdx (its
// place in the block). __global__ marks a function that the host launches, and extern "C" keeps its name as it is
// written, so that the host can ask for it.
//
// The first two: grid ceil(n / blockDim.x) blocks, any block. Thread i of the grid owns element i; the last block has
// threads to spare, and they do nothing. The third takes any grid.

// Which thread am I? Thread i writes the number of its block and its own number in that block.
extern "C" __global__ void which_thread(int* block,   // (n,) out
                                        int* thread,  // (n,) out
                                        int n) {
    // EXERCISE-BEGIN 0.2 (about 5 lines): find your element, and sign it if there is such an element
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        block[i] = blockIdx.x;
        thread[i] = threadIdx.x;
    }
    // EXERCISE-END 0.2
}

// The sum of two vectors, element by element. Bytes: 12 an element.
extern "C" __global__ void vector_add(const float* a,  // (n,)
                                      const float* b,  // (n,)
                                      float* sum,      // (n,) out
                                      int n) {
    // EXERCISE-BEGIN 0.3 (about 2 lines): find your element, and add it if there is such an element
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = a[i] + b[i];
    // EXERCISE-END 0.3
}

// The same by any grid, also by one of too few threads: each goes on until nothing is left.
extern "C" __global__ void vector_add_any_grid(const float* a,  // (n,)
                                               const float* b,  // (n,)
                                               float* sum,      // (n,) out
                                               int n) {
    // EXERCISE-BEGIN 0.4 (about 3 lines): add your element, then the one that lies as many further on as there are threads
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { sum[i] = a[i] + b[i]; }
    // EXERCISE-END 0.4
}
