/* rng -- counter-based random numbers: value = f(seed, name, index), so any rank can make any
 * element by itself.
 *
 * Philox 4x32-10. There is no state to carry, save or share; the same (stream, index) always gives
 * the same number.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H
#include <stdint.h>

struct rng {
    uint64_t key; /* mixes the seed and the name of the stream */
};

struct rng rng_stream(uint64_t seed, const char *name);
uint64_t rng_bits(struct rng rng, uint64_t index);                  /* 64 random bits */
double rng_uniform(struct rng rng, uint64_t index);                 /* [0, 1), 53 bits */
double rng_normal(struct rng rng, uint64_t index);                  /* mean 0, deviation 1 */
uint64_t rng_below(struct rng rng, uint64_t index, uint64_t bound); /* 0 .. bound-1, bound >= 1 */
/* 32 random bits of (index, turn): word index % 4 of the block of counter (index / 4, turn), so that
 * four neighbours cost one block. For a stream of its own: the others' counters are among these. */
uint32_t rng_word(struct rng rng, uint64_t index, uint64_t turn);

/* A permutation of 0 .. count-1 that needs no table: where `index` goes under key `rng` (a Feistel
 * walk). */
uint64_t rng_permute(struct rng rng, uint64_t index, uint64_t count);

/* One Philox block: 128 random bits of (key, counter). What the others are made of, and what known
 * answers test. */
void rng_block(uint64_t key, const uint32_t counter[4], uint32_t out[4]);

#endif
