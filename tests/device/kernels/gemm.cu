// tests/device/kernels/gemm.cu
// Tiled matrix products: a thread an element, and a template in which a thread has a tile in registers.
#define TILE 16

extern "C" __global__ void gemm_tiled(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float As[TILE][TILE], Bs[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.f;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        As[threadIdx.y][threadIdx.x] = row < M && k0 + threadIdx.x < K ? A[row * K + k0 + threadIdx.x] : 0.f;
        Bs[threadIdx.y][threadIdx.x] = k0 + threadIdx.y < K && col < N ? B[(k0 + threadIdx.y) * N + col] : 0.f;
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += As[threadIdx.y][k] * Bs[k][threadIdx.x];
        __syncthreads();
    }
    if (row < M && col < N) C[row * N + col] = sum;
}

template <typename T, int SIZE, int PER_THREAD>
__global__ void gemm_registers(const T* A, const T* B, T* C, int N, int K) {
    __shared__ T As[SIZE][8], Bs[8][SIZE];
    T sum[PER_THREAD][PER_THREAD] = {};
    int thread = threadIdx.y * 8 + threadIdx.x, row = blockIdx.y * SIZE, col = blockIdx.x * SIZE;
    for (int k0 = 0; k0 < K; k0 += 8) {
        for (int i = thread; i < SIZE * 8; i += 64) {
            As[i / 8][i % 8] = A[(row + i / 8) * K + k0 + i % 8];
            Bs[i / SIZE][i % SIZE] = B[(k0 + i / SIZE) * N + col + i % SIZE];
        }
        __syncthreads();
        for (int k = 0; k < 8; k++)
            for (int i = 0; i < PER_THREAD; i++)
                for (int j = 0; j < PER_THREAD; j++)
                    sum[i][j] += As[threadIdx.y * PER_THREAD + i][k] * Bs[k][threadIdx.x * PER_THREAD + j];
        __syncthreads();
    }
    for (int i = 0; i < PER_THREAD; i++)
        for (int j = 0; j < PER_THREAD; j++)
            C[(row + threadIdx.y * PER_THREAD + i) * N + col + threadIdx.x * PER_THREAD + j] = sum[i][j];
}
