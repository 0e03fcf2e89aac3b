// kernels/paged_decode.cu: attention of the requests that have one new token, on tensor cores (chapter 14 grown up).
//
// requires: sm_80, 16-bit SCALAR, HEAD_DIM 64 or 128; pages (blocks of the cache) of 16 tokens, at most 8 query heads a
// key/value head. kernels/attention.cu stands in where that does not hold. Rows of q lie a multiple of
// 8 elements apart.
//
// Grid ((num_requests + 1) * num_kv_heads, splits), 32 * warps threads, warps * group * STATE floats of shared memory.
// Block (r * num_kv_heads + h, s) serves all `group` query heads that share key/value head h of request r, so that the
// cache is read once. A warp takes whole pages: page p belongs to warp p % warps of split p / warps % splits. Each
// warp has a softmax of its own; they are merged as softmax_states.cuh says. A split without pages does nothing.
// Requests with any other number of new tokens are left to paged_prefill.cu; the blocks of "request" num_requests
// write zeros to the rows that nobody owns.
//
// K and V go from global memory straight into registers, 16 bytes a lane, in the order that mma.sync wants (ptx.cuh):
//   scores = Q K^T   a sum over dimensions may run in any order that Q and K share: lane (g, t) takes the chunks of 8
//                    dimensions t, t+4, ... of keys g and g+8
//   out = P V        lane (g, t) takes chunk g of the four keys whose weights it has; column g of product j is
//                    dimension 8g + j of a chunk of 64
// The query heads are rows 0 to 7 of the 16 that a product has; the others are zeros: tensor cores have time to spare.
//
// Bytes: each key and value once, 4 * HEAD_DIM bytes a token and key/value head; at the memory's bandwidth, the floor.
// Measured on an H200, 8 key/value heads of 64: 1 request of 128 keys 3.7 us, 8 of 2,048 13.4 (59% of 4.22 TB/s), 64 of
// 2,048 70.7 (90%), 256 of 2,048 256 us (100%).
#include "dtype.cuh"
#include "ptx.cuh"
#ifndef HEAD_DIM
#error "paged_decode.cu is compiled for one head size, 64 or 128: give -DHEAD_DIM=64"
#endif
#include "softmax_states.cuh"
static_assert(HEAD_DIM % 64 == 0 && sizeof(scalar_t) == 2, "16 bytes a lane are 8 dimensions; 8 lanes cover 64");

constexpr int PAGE = 16;
constexpr int K_CHUNKS = HEAD_DIM / 32, V_CHUNKS = HEAD_DIM / 64;  // 16-byte chunks of one key, of one value, in a lane
constexpr int MAX_THREADS = HEAD_DIM == 64 ? 512 : 256;            // by the registers that a thread needs
constexpr float LAG = 8.0f;  // the maximum in use may be too low by this power of two

// One page in a warp's registers: of the keys g and g+8, of the values 2t, 2t+1, 2t+8, 2t+9.
struct Page {
    uint4 k[2][K_CHUNKS], v[4][V_CHUNKS];
};

// The softmax of a warp's pages. scores are in powers of two, so that exp2f, which is one instruction, does.
struct Softmax {
    float out[8 * V_CHUNKS][4];  // of head g; [2] and [3] belong to the rows of zeros
    float maximum, sum;          // of head g; the sum over this lane's keys only
};

__device__ __forceinline__ int lane_g() { return threadIdx.x % 32 / 4; }
__device__ __forceinline__ int lane_t() { return threadIdx.x % 4; }

__device__ __forceinline__ void load_keys(Page& page, const scalar_t* keys) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int c = 0; c < K_CHUNKS; c++)
            page.k[n][c] = load_once(keys + (8 * n + lane_g()) * HEAD_DIM + (lane_t() + 4 * c) * 8);
}

// Values from `count` on become zeros: whatever lies in the rest of the last page, weight 0 times it must be 0.
__device__ __forceinline__ void load_values(Page& page, const scalar_t* values, int count) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int key = 2 * lane_t() + i % 2 + i / 2 * 8;
#pragma unroll
        for (int c = 0; c < V_CHUNKS; c++)
            page.v[i][c] = key < count ? load_once(values + key * HEAD_DIM + (lane_g() + 8 * c) * 8) : uint4{};
    }
}

// s[n][e], e < 2: the score of head g with key 8n + 2t + e of the page, MINUS_INFINITY from `count` on.
__device__ __forceinline__ void score(float (&s)[2][4], const uint4 (&q)[K_CHUNKS], const Page& page, int count,
                                      float scale) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int c = 0; c < K_CHUNKS; c++) {
            mma_16x8x16<scalar_t>(s[n], {q[c].x, 0, q[c].y, 0}, page.k[n][c].x, page.k[n][c].y);
            mma_16x8x16<scalar_t>(s[n], {q[c].z, 0, q[c].w, 0}, page.k[n][c].z, page.k[n][c].w);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) s[n][e] = 8 * n + 2 * lane_t() + e < count ? s[n][e] * scale : MINUS_INFINITY;
    }
}

// Scores become weights 2^(score - maximum), and the sum grows by them. The result is right for any maximum that does
// not let a weight overflow: it is raised, and the rest shrunk, only when a score lies more than LAG above it.
__device__ __forceinline__ void soften(float (&s)[2][4], Softmax& softmax) {
    float top = fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1]));
    if (__any_sync(~0u, top > softmax.maximum + LAG)) {
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));  // over the four lanes that share a head
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float raised = fmaxf(softmax.maximum, top), shrink = exp2f(softmax.maximum - raised);
        softmax.maximum = raised;
        softmax.sum *= shrink;
#pragma unroll
        for (int j = 0; j < 8 * V_CHUNKS; j++) softmax.out[j][0] *= shrink, softmax.out[j][1] *= shrink;
    }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            s[n][e] = exp2f(s[n][e] - softmax.maximum);
            softmax.sum += s[n][e];
        }
}

__device__ __forceinline__ unsigned word(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// out += P V. An operand holds two neighbouring keys' values of one dimension: __byte_perm pairs them.
__device__ __forceinline__ void weigh(Softmax& softmax, const float (&s)[2][4], const Page& page) {
    const unsigned p0 = pack<scalar_t>(s[0][0], s[0][1]), p1 = pack<scalar_t>(s[1][0], s[1][1]);
#pragma unroll
    for (int c = 0; c < V_CHUNKS; c++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const unsigned halves = j % 2 ? 0x7632 : 0x5410;
            const unsigned b0 = __byte_perm(word(page.v[0][c], j / 2), word(page.v[1][c], j / 2), halves);
            const unsigned b1 = __byte_perm(word(page.v[2][c], j / 2), word(page.v[3][c], j / 2), halves);
            mma_16x8x16<scalar_t>(softmax.out[8 * c + j], {p0, 0, p1, 0}, b0, b1);
        }
}

// Which pages a warp takes: every stride-th, from `first` on. Lane i looks up the warp's page i of 32 at a time.
struct Walk {
    const int* table;  // the request's pages, in order
    int table_width, first, stride, looked_up;

    __device__ __forceinline__ void look_up(int i) {
        const int p = first + (i + threadIdx.x % 32) * stride;
        looked_up = p < table_width ? __ldg(table + p) : 0;
    }
    // The number of the warp's page i, which only ever grows by one.
    __device__ __forceinline__ size_t page(int i) {
        if (i % 32 == 0 && i > 0) look_up(i);
        return __shfl_sync(~0u, looked_up, i % 32);
    }
};

// All pages of this warp. q: head g's chunks; kv: the cache at this key/value head.
__device__ __forceinline__ void attend(Softmax& softmax, const uint4 (&q)[K_CHUNKS], const scalar_t* kv, Walk walk,
                                       int seq_len, size_t page_stride, float scale) {
    const int pages = (seq_len + PAGE - 1) / PAGE;
    const int mine = walk.first < pages ? (pages - walk.first + walk.stride - 1) / walk.stride : 0;
    if (mine == 0) return;
    int count = seq_len - walk.first * PAGE;  // keys from this page on
    Page page;
    const scalar_t* next = kv + walk.page(0) * page_stride;
    load_keys(page, next);
    load_values(page, next + PAGE * HEAD_DIM, count);
    for (int i = 0; i < mine; i++) {
        const bool more = i + 1 < mine;
        if (more) next = kv + walk.page(i + 1) * page_stride;
        float s[2][4] = {};
        score(s, q, page, count, scale);
        if (more) load_keys(page, next);  // into the registers that were read, while the rest is computed
        soften(s, softmax);
        weigh(softmax, s, page);
        count -= walk.stride * PAGE;
        if (more) load_values(page, next + PAGE * HEAD_DIM, count);
    }
}

// A warp's softmax into shared memory. Columns 2t and 2t+1 of product j are dimensions 16t + j and 16t + 8 + j.
__device__ __forceinline__ void store_state(float* states, Softmax& softmax, int group) {
    softmax.sum += __shfl_xor_sync(~0u, softmax.sum, 1);
    softmax.sum += __shfl_xor_sync(~0u, softmax.sum, 2);
    if (lane_g() >= group) return;
    float* state = states + (threadIdx.x / 32 * group + lane_g()) * STATE;
    if (lane_t() == 0) state[HEAD_DIM] = softmax.maximum, state[HEAD_DIM + 1] = softmax.sum;
#pragma unroll
    for (int c = 0; c < V_CHUNKS; c++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int j = 8 * c; j < 8 * c + 8; j += 4)
                *reinterpret_cast<float4*>(state + 56 * c + 16 * lane_t() + 8 * e + j) =
                    make_float4(softmax.out[j][e], softmax.out[j + 1][e], softmax.out[j + 2][e], softmax.out[j + 3][e]);
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    paged_decode(const scalar_t* q,           // (num_tokens, num_kv_heads * group * HEAD_DIM), rows q_stride apart
                 const scalar_t* kv,          // (num_pages, num_kv_heads, 2, PAGE, HEAD_DIM): keys, then values
                 const int* query_start_loc,  // (num_requests + 1,)
                 const int* seq_lens,         // (num_requests,): the new token included; 0 gives zeros
                 const int* block_table,      // (num_requests, table_width)
                 scalar_t* out,               // (num_tokens, num_kv_heads * group * HEAD_DIM)
                 float* partial,              // (num_requests, num_kv_heads, splits, group, STATE), if splits > 1
                 int* arrived,                // (num_requests, num_kv_heads), if splits > 1: zeros, and left so
                 int q_stride, int num_tokens, int num_requests, int table_width, int num_kv_heads, int group,
                 float scale) {  // log2(e) / sqrt(HEAD_DIM)
    extern __shared__ __align__(16) float states[];
    __shared__ bool flag;
    const int request = blockIdx.x / num_kv_heads, kv_head = blockIdx.x % num_kv_heads, split = blockIdx.y;
    const int columns = group * HEAD_DIM, row = query_start_loc[request];
    const size_t row_stride = (size_t)num_kv_heads * columns;
    scalar_t* mine = out + row * row_stride + kv_head * columns;
    if (request == num_requests) {  // rows that nobody owns
        if (split >= num_tokens - row) return;
        wait_for_previous_kernel();
        for (int r = split; r < num_tokens - row; r += gridDim.y)
            for (int i = threadIdx.x; i < columns; i += blockDim.x) mine[r * row_stride + i] = scalar_t(0.0f);
        return;
    }
    const int warps = blockDim.x / 32, rows = query_start_loc[request + 1] - row, seq_len = seq_lens[request];
    Walk walk = {block_table + (size_t)request * table_width, table_width, split * warps + (int)threadIdx.x / 32,
                 (int)gridDim.y * warps, 0};
    walk.look_up(0);  // before anything waits for the lengths
    const int splits = min((int)gridDim.y, max(1, (seq_len + PAGE * warps - 1) / (PAGE * warps)));  // that have a page
    const bool idle = rows != 1 || split >= splits;
    if (idle && blockIdx.x + blockIdx.y > 0) return;  // not all: this kernel must not end before the last one
    wait_for_previous_kernel();  // what came before is the plan of the step, older than the kernel before this one
    if (idle) return;

    uint4 query[K_CHUNKS];
    const scalar_t* head = q + (size_t)row * q_stride + (kv_head * group + lane_g()) * HEAD_DIM;
#pragma unroll
    for (int c = 0; c < K_CHUNKS; c++)
        query[c] = lane_g() < group ? *reinterpret_cast<const uint4*>(head + (lane_t() + 4 * c) * 8) : uint4{};
    Softmax softmax = {{}, MINUS_INFINITY, 0.0f};
    attend(softmax, query, kv + (size_t)kv_head * 2 * PAGE * HEAD_DIM, walk, seq_len,
           (size_t)num_kv_heads * 2 * PAGE * HEAD_DIM, scale);
    launch_next_kernel();  // not before: its weights would come in the way of these keys and values
    store_state(states, softmax, group);
    __syncthreads();
    finish(states, mine, partial + (size_t)blockIdx.x * gridDim.y * group * STATE, arrived + blockIdx.x, &flag, splits,
           group);
}
