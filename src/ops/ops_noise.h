/* ops_noise -- matrices on which two ways to form a product D = A B are compared.
 *
 * Two ways that add in another order differ in the last places of a float sum, and nearly all of
 * that is gone when the sum is rounded to 16 bits. So the sums of half of the columns of D are
 * made to cancel:
 *
 *     A(i, K-1-k) = -A(i, k)    and in even columns of B    B(K-1-k, j) = B(k, j)
 *
 * What is left of those sums is what was lost on the way, all of it, and another order loses
 * something else (tests/ops/test_ops_noise.c counts). The other columns have sums of a usual
 * size, for what an epilogue does with them; what is added to a product is nothing in even rows,
 * so that there what cancels is still seen. Numbers are the sum of four uniform ones, nearly
 * normal, times a power of two from 1 to 1/128: their products end far below the last place of
 * the sums that they go to, so that additions round.
 *
 * Seen by C and by CUDA C++ alike; includes nothing of sifr.
 */
#ifndef OPS_OPS_NOISE_H
#define OPS_OPS_NOISE_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define NOISE_INLINE __host__ __device__ static inline
#else
#define NOISE_INLINE static inline
#endif

enum noise_kind {
    NOISE_A,     /* a factor: its part of what cancels */
    NOISE_B,     /* the other */
    NOISE_PLAIN, /* no more than numbers */
    NOISE_ADDED  /* to a product: nothing in even rows */
};

struct noise { /* a matrix */
    enum noise_kind kind;
    uint64_t seed;
    int64_t rows, columns; /* columns one after the other */
    bool down;             /* factors: k runs along a column */
    float scale;
};

#define NOISE_DEVIATION 0.236f /* standard, of numbers with scale 1 */

NOISE_INLINE uint64_t noise_mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

NOISE_INLINE float noise_number(uint64_t seed, uint64_t at)
{
    uint64_t bits = noise_mix(noise_mix(at + 1) + seed);
    int four = (int)(bits & 0xffff) + (int)(bits >> 16 & 0xffff) + (int)(bits >> 32 & 0xffff) +
               (int)(bits >> 48 & 0x1fff) * 8;
    return ldexpf((float)(four - 0x1fffc), -16 - (int)(bits >> 61));
}

/* Element i of the matrix in memory. */
NOISE_INLINE float noise_at(const struct noise *n, int64_t i)
{
    int64_t row = i % n->rows, column = i / n->rows;
    int64_t length = n->down ? n->rows : n->columns, k = n->down ? row : column;
    int64_t other = n->down ? column : row;
    bool cancels = n->kind == NOISE_A || (n->kind == NOISE_B && other % 2 == 0);
    bool turned = cancels && 2 * k >= length;
    float value = noise_number(n->seed, (uint64_t)(other * length + (turned ? length - 1 - k : k)));
    if (turned && n->kind == NOISE_A)
        value = -value;
    return n->kind == NOISE_ADDED && row % 2 == 0 ? 0 : value * n->scale;
}

#endif
