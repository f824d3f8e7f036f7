/* ops_noise -- matrices on which two algorithms for a product D = A B are compared.
 *
 * Two algorithms that add in different orders differ in the last bits of a float sum, and rounding
 * the sum to 16 bits hides nearly all of that. So the sums of half of the columns of D are made to
 * cancel:
 *
 *     A(i, K-1-k) = -A(i, k)    and in even columns of B    B(K-1-k, j) = B(k, j)
 *
 * Such a sum consists only of rounding errors, and another order has other errors
 * (tests/ops/test_ops_noise.c counts them). The other columns have sums of normal size, so that an
 * epilogue is tested too. What is added to a product is zero in even rows, so that the errors stay
 * visible there. Numbers are sums of four uniform numbers, nearly normal, times a power of two from
 * 1 to 1/128: the last bits of their products are far below those of the sums, so that additions
 * round.
 *
 * C and CUDA C++ both include this header, so it includes nothing of sifr.
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
    NOISE_A,     /* the first factor: its second half is the negative of the first, mirrored */
    NOISE_B,     /* the second factor: even columns are mirrored */
    NOISE_PLAIN, /* plain numbers */
    NOISE_ADDED  /* added to a product: zero in even rows */
};

struct noise { /* a matrix */
    enum noise_kind kind;
    uint64_t seed;
    int64_t rows, columns; /* stored column by column */
    bool down;             /* factors: k runs down a column */
    float scale;
    int64_t stride; /* from column to column: at least `rows`; zeros lie between */
};

#define NOISE_DEVIATION 0.236f /* standard deviation of numbers with scale 1 */

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
    int64_t row = i % n->stride, column = i / n->stride;
    int64_t length = n->down ? n->rows : n->columns, k = n->down ? row : column;
    int64_t other = n->down ? column : row;
    bool cancels = n->kind == NOISE_A || (n->kind == NOISE_B && other % 2 == 0);
    bool mirrored = cancels && 2 * k >= length;
    if (row >= n->rows)
        return 0;
    float value =
        noise_number(n->seed, (uint64_t)(other * length + (mirrored ? length - 1 - k : k)));
    if (mirrored && n->kind == NOISE_A)
        value = -value;
    return n->kind == NOISE_ADDED && row % 2 == 0 ? 0 : value * n->scale;
}

#endif
