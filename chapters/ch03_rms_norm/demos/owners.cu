// chapters/ch03_rms_norm/demos/owners.cu: a picture of chapter 03: each thread signs the columns that it owns.
//
// One block over one row. In each pass the block takes the next blockDim.x columns, a thread one of them.
extern "C" __global__ void owners(int* owner,  // (hidden,)
                                  int hidden) {
    int passes = (hidden + blockDim.x - 1) / blockDim.x;
    for (int pass = 0; pass < passes; pass++) {
        int mine = pass * blockDim.x + threadIdx.x;
        if (mine < hidden) owner[mine] = threadIdx.x;
    }
}
