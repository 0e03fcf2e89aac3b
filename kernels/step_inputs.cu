// kernels/step_inputs.cu: the last touch to a step's inputs, which the device alone can give.
//
// update_block_tables  the blocks that requests have got since the last step go into their rows.
// place_tokens         the rows of this step's requests come together in the step's order, since attention takes
// request
//                      r's table from row r while a request keeps its row from step to step; then where each token
//                      stands and where its keys go; and the id of one that the step before draws, which the host does
//                      not know yet: its place says whose it is.
// Grids: one thread an entry; one block a request.
// Bytes: 12 * count; 16 * T and 8 for each block that the step's requests own: nothing beside a launch, which is what
// they cost. Measured on an H200: update_block_tables 1.0 us for 250 entries; place_tokens 1.6 us for 256 requests of
// one token, and 13.9 for a prompt of 4,000 with 128 threads, which is why it gets 1,024.

extern "C" __global__ void update_block_tables(int* tables,        // (rows, width), as one array
                                               const int* places,  // (count,): row * width + index, each once
                                               const int* blocks,  // (count,)
                                               int count) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < count) tables[places[i]] = blocks[i];
}

// tokens[i] = -1 - r becomes last_ids[r], what the r-th drawing request of the step before got.
extern "C" __global__ void place_tokens(int* tokens,                 // (T,)
                                        const int* last_ids,         // (drawing requests of the step before,)
                                        const int* query_start_loc,  // (num_requests + 1,)
                                        const int* seq_lens,         // (num_requests,); 0: a padded row
                                        const int* rows,             // (num_requests,): where each request's table is
                                        const int* tables,           // (rows, width)
                                        int* step_tables,            // (num_requests, width); unused ends stay as are
                                        int* positions,              // (T,)
                                        int* slots,                  // (T,); -1, nowhere, for a padded row
                                        int width, int block_size) {
    const int request = blockIdx.x, length = seq_lens[request], end = query_start_loc[request + 1];
    const int count = (seq_lens[request] + block_size - 1) / block_size;
    const int* table = tables + (size_t)rows[request] * width;
    int* to = step_tables + (size_t)request * width;
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = table[i];
    for (int i = query_start_loc[request] + threadIdx.x; i < end; i += blockDim.x) {
        const int position = max(length - (end - i), 0);
        positions[i] = position;
        slots[i] = length > 0 ? table[position / block_size] * block_size + position % block_size : -1;
        if (tokens[i] < 0) tokens[i] = last_ids[-1 - tokens[i]];
    }
}
