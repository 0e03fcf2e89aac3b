// kernels/decode_layers_pages.cuh: a warp's part of attention for one new token: its pages of the cache, in turn.
//
// Keys and values go from global memory straight into the registers of mma.sync, 16 bytes a lane, in the order that it
// wants (ptx.cuh):
//   scores = K Q^T   a page's 16 tokens are the rows, the query heads of the group, up to 8, the columns; a sum over
//                    dimensions may run in any order that both share: lane (g, t) takes the chunks of 8 dimensions t,
//                    t+4, ...
//   out = V^T P      dimensions are the rows, heads the columns: lane (g, t) takes chunk g of the four tokens whose
//                    weights it has
// Pages are asked for before the queries are there. The newest token's key and value come from the exchange words: the
// cache gets them in this very step, too late.
#pragma once
#include "decode_layers_products.cuh"

constexpr int K_CHUNKS = HEAD_DIM / 32, V_CHUNKS = HEAD_DIM / 64;  // 16-byte chunks of one key, of one value, in a lane
constexpr int PAGE_ELEMENTS = PAGE * HEAD_DIM;
constexpr int STATE = HEAD_DIM + 4;  // floats of a warp's result for one head: sums, maximum, sum of weights
constexpr bool AHEAD =
    HEAD_DIM == 64;               // pages are asked for while the one before is computed: larger heads lack registers
constexpr float LOWEST = -1e30f;  // finite: minus itself it is 0

__device__ __forceinline__ unsigned element(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// The pages of one split.
struct Range {
    int begin, end;
    __device__ __forceinline__ Range(int seq_len, int split, int splits) {
        const int pages = (seq_len + PAGE - 1) / PAGE, each = (pages + splits - 1) / splits;
        begin = split * each;
        end = min(pages, begin + each);
    }
};

// One row's part of the cache at one key/value head.
struct Keys {
    const bf16* cache;            // of the layer, at the head
    const int* table;             // the row's pages
    int seq_len, newest;          // newest: the token that is in the exchange words and not in the cache; -1: none
    const unsigned *key, *value;  // its words

    __device__ __forceinline__ const bf16* page(int p) const {
        return cache + (size_t)__ldg(table + p) * (NUM_KV_HEADS * 2 * PAGE_ELEMENTS);
    }
    __device__ __forceinline__ bool has_newest(int at) const { return at <= newest && newest < at + PAGE; }
};

// One page in a warp's registers: of the keys g and g+8, of the values 2t, 2t+1, 2t+8, 2t+9.
struct Page {
    uint4 k[2][K_CHUNKS], v[4][V_CHUNKS];
};
__device__ __forceinline__ int key_of(int n) { return 8 * n + lane_g(); }
__device__ __forceinline__ int value_of(int i) { return 2 * lane_t() + i % 2 + i / 2 * 8; }

__device__ __forceinline__ void load_keys(Page& page, const bf16* from) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int c = 0; c < K_CHUNKS; c++)
            page.k[n][c] = load_once(from + key_of(n) * HEAD_DIM + (lane_t() + 4 * c) * 8);
}
// `at` is the page's first token. Values that are not there become zeros: weight 0 times whatever lies there must be 0.
__device__ __forceinline__ void load_values(Page& page, const Keys& keys, const bf16* from, int at) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const bool wanted = at + value_of(i) < keys.seq_len && at + value_of(i) != keys.newest;
#pragma unroll
        for (int c = 0; c < V_CHUNKS; c++)
            page.v[i][c] =
                wanted ? load_once(from + PAGE_ELEMENTS + value_of(i) * HEAD_DIM + (lane_g() + 8 * c) * 8) : uint4{};
    }
}
__device__ __forceinline__ void ask_newest_value(Page& page, const Keys& keys, int at) {
#pragma unroll
    for (int i = 0; i < 4; i++) ask_words_if(at + value_of(i) == keys.newest, page.v[i], keys.value + lane_g() * 4, 32);
}
__device__ __forceinline__ void await_newest_value(Page& page, const Keys& keys, int at) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        await_words_if(at + value_of(i) == keys.newest, page.v[i], keys.value + lane_g() * 4, 32);
    __syncwarp();
}
// The query heads and, if this is its page, the newest token's key and value where they belong: asked for together.
// VALUE: or its value is left for later.
template <bool VALUE>
__device__ __forceinline__ void take_query(uint4 (&q)[K_CHUNKS], Page& page, const Keys& keys, const unsigned* query,
                                           int at) {
    const unsigned *head = query + min(lane_g(), GROUP - 1) * HALF_DIM + lane_t() * 4, *key = keys.key + lane_t() * 4;
    ask_words(q, head, 16);
    if (keys.has_newest(at)) {
#pragma unroll
        for (int n = 0; n < 2; n++) ask_words_if(at + key_of(n) == keys.newest, page.k[n], key, 16);
        if (VALUE) ask_newest_value(page, keys, at);
#pragma unroll
        for (int n = 0; n < 2; n++) await_words_if(at + key_of(n) == keys.newest, page.k[n], key, 16);
        if (VALUE) await_newest_value(page, keys, at);
    }
    await_words(q, head, 16);
    __syncwarp();
}

// The softmax of a warp's pages, for heads 2t and 2t+1; scores are in powers of two.
struct Softmax {
    float out[4 * V_CHUNKS][4] =
        {};  // [0], [1]: dimension 8g + 2j of the heads (j: of 4 in a chunk of 64); [2], [3]: the next
    float maximum[2] = {LOWEST, LOWEST}, sum[2] = {};  // the sum over this lane's keys only
};

// s[2n + h]: the score of key 8n + g of a page with head 2t + h, LOWEST from `count` on.
__device__ __forceinline__ void score(float (&s)[4], const uint4 (&q)[K_CHUNKS], const Page& page, int count) {
    const float scale = 1.44269504f * rsqrtf(HEAD_DIM);
#pragma unroll
    for (int c = 0; c < K_CHUNKS; c++) {
        const uint4 &a = page.k[0][c], &b = page.k[1][c];
        mma_16x8x16<bf16>(s, {a.x, b.x, a.y, b.y}, q[c].x, q[c].y);
        mma_16x8x16<bf16>(s, {a.z, b.z, a.w, b.w}, q[c].z, q[c].w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] = key_of(i / 2) < count ? s[i] * scale : LOWEST;
}

// Scores become weights 2^(score - maximum); what was summed up before shrinks to the new maximum.
__device__ __forceinline__ void soften(float (&s)[4], Softmax& softmax) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = fmaxf(s[h], s[2 + h]);
#pragma unroll
        for (int apart = 4; apart < 32; apart *= 2)
            top = fmaxf(top, __shfl_xor_sync(~0u, top, apart));  // over the keys
        const float raised = fmaxf(softmax.maximum[h], top), shrink = exp2_of(softmax.maximum[h] - raised);
        softmax.maximum[h] = raised;
        s[h] = exp2_of(s[h] - raised);
        s[2 + h] = exp2_of(s[2 + h] - raised);
        softmax.sum[h] = softmax.sum[h] * shrink + s[h] + s[2 + h];
#pragma unroll
        for (int j = 0; j < 4 * V_CHUNKS; j++) softmax.out[j][h] *= shrink, softmax.out[j][2 + h] *= shrink;
    }
}

// out += V^T P. An operand holds two neighbouring tokens' values of one dimension: __byte_perm pairs them. The weights
// lie token by token; the right operand wants them head by head.
__device__ __forceinline__ void weigh(Softmax& softmax, const float (&s)[4], const Page& page) {
    const unsigned p0 = transpose(pack<bf16>(s[0], s[1])), p1 = transpose(pack<bf16>(s[2], s[3]));
#pragma unroll
    for (int c = 0; c < V_CHUNKS; c++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const unsigned a = element(page.v[0][c], j), b = element(page.v[1][c], j);
            const unsigned d = element(page.v[2][c], j), e = element(page.v[3][c], j);
            mma_16x8x16<bf16>(softmax.out[4 * c + j],
                              {__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(d, e, 0x5410),
                               __byte_perm(d, e, 0x7632)},
                              p0, p1);
        }
}

// This warp's pages of a range, the last one first: the newest token can only be there. query: this key/value head's
// words of the row, which are waited for.
__device__ __forceinline__ void attend(Softmax& softmax, const Keys& keys, const Range& range, const unsigned* query) {
    const int count = range.end - range.begin - (int)threadIdx.x / 32;  // pages from the warp's first on
    if (count <= 0) return;
    int p = range.end - 1 - (count - 1) % WARPS;
    Page page;
    const bf16* from = keys.page(p);
    load_keys(page, from);
    if (AHEAD) load_values(page, keys, from, p * PAGE);
    uint4 q[K_CHUNKS];
    take_query<AHEAD>(q, page, keys, query, p * PAGE);
#pragma unroll 1
    for (;;) {
        const int at = p * PAGE;
        const bool more = (p -= WARPS) >= range.begin;
        float s[4] = {};
        score(s, q, page, keys.seq_len - at);
        if (!AHEAD) load_values(page, keys, from, at);
        if (!AHEAD && keys.has_newest(at)) ask_newest_value(page, keys, at), await_newest_value(page, keys, at);
        if (more) from = keys.page(p);
        if (AHEAD && more) load_keys(page, from);  // into the registers that were read
        soften(s, softmax);
        weigh(softmax, s, page);
        if (!more) break;
        if (AHEAD) load_values(page, keys, from, p * PAGE);
        else load_keys(page, from);
    }
}

// A warp's result into shared memory, states (WARPS, GROUP, STATE).
__device__ __forceinline__ void store_state(float* states, Softmax& softmax) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int apart = 4; apart < 32; apart *= 2) softmax.sum[h] += __shfl_xor_sync(~0u, softmax.sum[h], apart);
        if (2 * lane_t() + h >= GROUP) continue;
        float* state = states + (threadIdx.x / 32 * GROUP + 2 * lane_t() + h) * STATE;
        if (lane_g() == 0) state[HEAD_DIM] = softmax.maximum[h], state[HEAD_DIM + 1] = softmax.sum[h];
#pragma unroll
        for (int j = 0; j < 4 * V_CHUNKS; j += 2)
            *reinterpret_cast<float4*>(state + j / 4 * 64 + 8 * lane_g() + j % 4 * 2) =
                make_float4(softmax.out[j][h], softmax.out[j][2 + h], softmax.out[j + 1][h], softmax.out[j + 1][2 + h]);
    }
}
