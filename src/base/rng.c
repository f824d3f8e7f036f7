/* rng -- Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
 * 2011).
 *
 * One block turns a 128-bit counter and a 64-bit key into 128 random bits. The counter is (index,
 * attempt); attempt is 0 unless rng_below must draw again to stay unbiased. The permutation does
 * not use blocks. It is a Feistel network over the smallest domain of 2^(2h) values that contains 0
 * .. count-1, applied repeatedly until the value is below `count` (cycle walking). The network is a
 * bijection of its domain and each walk follows one of its cycles, so the result is a bijection of
 * 0 .. count-1. A walk takes fewer than four steps on average.
 */
#include "base/rng.h"
#include "base/status.h"

void rng_block(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * x0, p1 = (uint64_t)0xcd9e8d57u * x2;
        x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)p1;
        x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = x0, out[1] = x1, out[2] = x2, out[3] = x3;
}

struct pair {
    uint64_t a, b;
};

static struct pair draw(struct rng rng, uint64_t index, uint32_t attempt)
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), attempt, 0};
    uint32_t x[4];
    rng_block(rng.key, counter, x);
    return (struct pair){x[0] | (uint64_t)x[1] << 32, x[2] | (uint64_t)x[3] << 32};
}

/* A bijection of 64 bits in which each input bit flips about half of the output bits. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

struct rng rng_stream(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
    return (struct rng){mix(mix(seed + 0x9e3779b97f4a7c15ull) ^ hash)};
}

uint64_t rng_bits(struct rng rng, uint64_t index)
{
    return draw(rng, index, 0).a;
}

double rng_uniform(struct rng rng, uint64_t index)
{
    return (double)(rng_bits(rng, index) >> 11) * 0x1p-53;
}

uint64_t rng_below(struct rng rng, uint64_t index, uint64_t bound)
{
    CHECK(bound >= 1);
    /* The result is the high word of bits * bound. Low words below 2^64 mod bound are rejected:
     * they would make some values more likely. */
    uint64_t unfair = -bound % bound;
    for (uint32_t attempt = 0;; attempt++) {
        unsigned __int128 product = (unsigned __int128)draw(rng, index, attempt).a * bound;
        if ((uint64_t)product >= unfair)
            return (uint64_t)(product >> 64);
    }
}

uint32_t rng_word(struct rng rng, uint64_t index, uint64_t turn)
{
    const uint64_t block = index / 4;
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)turn,
                                 (uint32_t)(turn >> 32)};
    uint32_t x[4];
    rng_block(rng.key, counter, x);
    return x[index % 4];
}

enum { FEISTEL_ROUNDS = 8 };

static uint64_t feistel(uint64_t key, uint64_t x, int half)
{
    uint64_t mask = ((uint64_t)1 << half) - 1, left = x >> half, right = x & mask;
    for (uint64_t round = 1; round <= FEISTEL_ROUNDS; round++) {
        uint64_t next = left ^ (mix(key + round * 0x9e3779b97f4a7c15ull + mix(right)) & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

uint64_t rng_permute(struct rng rng, uint64_t index, uint64_t count)
{
    CHECK(index < count);
    int half = 1;
    while (half < 32 && (count - 1) >> (2 * half) != 0)
        half++;
    do
        index = feistel(rng.key, index, half);
    while (index >= count);
    return index;
}
