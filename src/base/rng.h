/* rng -- counter-based random numbers: value = f(seed, name, index), so any rank can compute any
 * element independently.
 *
 * Philox 4x32-10. There is no state to save or share; the same (stream, index) always gives the
 * same number.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H
#include <stdint.h>

struct rng {
    uint64_t key; /* mixes the seed and the name of the stream */
};

struct rng rng_stream(uint64_t seed, const char *name);
uint64_t rng_bits(struct rng rng, uint64_t index);  /* 64 random bits */
double rng_uniform(struct rng rng, uint64_t index); /* [0, 1), 53 bits */
double rng_normal(struct rng rng, uint64_t index);  /* mean 0, deviation 1 */
/* out[i] = scale * rng_normal(rng, first + i), rounded once; many times as fast. */
void rng_normals(struct rng rng, uint64_t first, int64_t count, double scale, float *out);
uint64_t rng_below(struct rng rng, uint64_t index, uint64_t bound); /* 0 .. bound-1, bound >= 1 */
/* 32 random bits of (index, turn): word index % 4 of the block with counter (index / 4, turn), so
 * four neighbours cost one block. Use a separate stream for it: its counters include those of the
 * functions above. */
uint32_t rng_word(struct rng rng, uint64_t index, uint64_t turn);

/* A permutation of 0 .. count-1 without a table: the image of `index` under key `rng` (Feistel
 * network with cycle walking). */
uint64_t rng_permute(struct rng rng, uint64_t index, uint64_t count);

/* One Philox block: 128 random bits of (key, counter). All random numbers above are derived from
 * it; tests compare it with known answers. */
void rng_block(uint64_t key, const uint32_t counter[4], uint32_t out[4]);

#endif
