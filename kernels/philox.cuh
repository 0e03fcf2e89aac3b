// kernels/philox.cuh: random numbers without a state (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3").
//
// Philox4x32-10 turns a key and a counter into four random words; the same two give the same words on every machine.
// Here the key is a request's seed, and the counter says which output token is drawn and for which token ids the words
// are. So a draw depends on nothing that ran before or runs beside it.
#pragma once

struct Words {
    unsigned word[4];
};

// Ten rounds: multiply two words by constants, cross the halves of the products over, and add to the key.
__device__ __forceinline__ Words philox(Words counter, unsigned key_low, unsigned key_high) {
    for (int round = 0; round < 10; round++) {
        const unsigned long long a = 0xD2511F53ull * counter.word[0];
        const unsigned long long b = 0xCD9E8D57ull * counter.word[2];
        counter = {(unsigned)(b >> 32) ^ counter.word[1] ^ key_low, (unsigned)b,
                   (unsigned)(a >> 32) ^ counter.word[3] ^ key_high, (unsigned)a};
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
    return counter;
}

// The words of token ids 4 * group to 4 * group + 3, for the output token of that index.
__device__ __forceinline__ Words token_words(int group, int index, unsigned seed_low, unsigned seed_high) {
    return philox({(unsigned)group, (unsigned)index, 0, 0}, seed_low, seed_high);
}

// Gumbel noise from a random word: -log(E), where E = -log(1 - u) and u = (word + 1/2) / 2^32.
// Unlikely tokens are drawn where E is tiny, and so u is: float is finest there. At the other end u may round to 1;
// the noise is then -inf, which loses.
__device__ __forceinline__ float gumbel(unsigned word) {
    const float u = ((float)word + 0.5f) * 2.3283064365386963e-10f;  // 2^-32
    return -logf(-log1pf(-u));
}
