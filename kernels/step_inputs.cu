// kernels/step_inputs.cu: the last touch to a step's inputs, which the device alone can give.
//
// fill_in_flight       a token that the step before draws is not known to the host yet: its place says whose it is.
// update_block_tables  the blocks that requests have got since the last step go into their rows.
// gather_block_tables  the rows of this step's requests, in the step's order, since attention takes request r's table
//                      from row r while a request keeps its row from step to step.
// Grids: one thread an entry; for gather_block_tables one block a request.
// Bytes: 8 * T; 12 * count; 8 for each block that the step's requests own.

// tokens[i] = -1 - r becomes last_ids[r], what the r-th drawing request of the step before got.
extern "C" __global__ void fill_in_flight(int* tokens,          // (count,)
                                          const int* last_ids,  // (drawing requests of the step before,)
                                          int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && tokens[i] < 0) tokens[i] = last_ids[-1 - tokens[i]];
}

extern "C" __global__ void update_block_tables(int* tables,        // (rows, width), as one array
                                               const int* places,  // (count,): row * width + index, each once
                                               const int* blocks,  // (count,)
                                               int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) tables[places[i]] = blocks[i];
}

extern "C" __global__ void gather_block_tables(const int* tables,    // (rows, width)
                                               const int* rows,      // (num_requests,): where each request's table is
                                               const int* seq_lens,  // (num_requests,); 0: a padded row
                                               int* step_tables,     // (num_requests, width); unused ends stay as are
                                               int width, int block_size) {
    const int request = blockIdx.x;
    const int count = (seq_lens[request] + block_size - 1) / block_size;
    const int* from = tables + (size_t)rows[request] * width;
    int* to = step_tables + (size_t)request * width;
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}
