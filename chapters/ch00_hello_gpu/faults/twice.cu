// chapters/ch00_hello_gpu/faults/twice.cu: a trap that the lesson of chapter 00 runs. It is wrong.
//
// Doubles the first n numbers, one block. Nobody asks whether a thread's number is one of them.
extern "C" __global__ void twice(float* numbers,  // (n,)
                                 int n) {
    numbers[threadIdx.x] = 2 * numbers[threadIdx.x];
}
