// tests/data/course/ch42_sums/sums.cu: the worked solution of chapter 42. The engine runs nothing of it.
//
// Two kernels, one block a row: the first writes factor * x + 1, the second the sum of the row.

// Grid (rows), any block: thread t owns the columns t, t + blockDim.x ...
extern "C" __global__ void scale_rows(const float* x,  // (rows, columns)
                                      float* y,        // (rows, columns)
                                      int columns, float factor) {
    x += (size_t)blockIdx.x * columns;
    y += (size_t)blockIdx.x * columns;
    // EXERCISE-BEGIN 42.2 (about 3 lines): write factor * x + 1 into the columns that this thread owns
    for (int c = threadIdx.x; c < columns; c += blockDim.x) { y[c] = factor * x[c] + 1; }
    // EXERCISE-END 42.2
}

// Grid (rows), block a power of two up to 256.
extern "C" __global__ void row_sum(const float* x,  // (rows, columns)
                                   float* total,    // (rows,)
                                   int columns) {
    __shared__ float partial[256];
    float sum = 0.0f;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += x[(size_t)blockIdx.x * columns + c];
    partial[threadIdx.x] = sum;
    __syncthreads();
    // EXERCISE-BEGIN 42.3 (about 4 lines): halve the number of sums until partial[0] holds the sum of them all
    for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
        if (threadIdx.x < stride) partial[threadIdx.x] += partial[threadIdx.x + stride];
        __syncthreads();
    }
    // EXERCISE-END 42.3
    if (threadIdx.x == 0) total[blockIdx.x] = partial[0];
}
